# SPDX-License-Identifier: Apache-2.0
"""All workers of a simulated job, in which group each of them is, and what befalls them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gangline.protocol.messages import FINISHED, Goodbye
from gangline.simulation.network import Network
from gangline.simulation.strikes import Strikes
from gangline.simulation.teams.gathering import Gathering
from gangline.simulation.teams.merging import Exchanges
from gangline.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.control import ControlOptions
    from gangline.simulation.clock import VirtualClock
    from gangline.simulation.course import Course, Position
    from gangline.simulation.in_step.rounds import Round
    from gangline.simulation.lives import Life
    from gangline.simulation.scenario import Scenario
    from gangline.simulation.teams.member import Member
    from gangline.simulation.world import Sink


class Field(World):
    """What workers and groups share."""

    def __init__(
        self,
        scenario: Scenario,
        lives: list[Life],
        *,
        clock: VirtualClock,
        sink: Sink,
        options: ControlOptions,
        course: Course,
        epochs: int,
        end: Callable[[str | None], None],
    ) -> None:
        """`end` is called at the end of the job, with what went wrong, if anything did."""
        super().__init__(scenario, lives, clock=clock, sink=sink)
        assert course.samples is not None
        self.everybody: dict[int, Member] = {}
        self.length = course.samples
        self.epochs = epochs
        self.seed = options.seed
        self.minimum = max(1, options.minimum)
        self.workers = scenario.simulated_workers()
        self.network = Network(scenario, np.random.default_rng((options.seed, 3)))
        self.exchanges = Exchanges(self, self.network, self.attend)
        self.gathering = Gathering(self)
        self.strikes = Strikes(self, course.faults, observer=self)
        self.num_steps = 0
        """Steps of all groups together."""
        self.waited_s = 0.0
        """What teams have waited for others, all of them added up."""
        self.computed_s = 0.0
        """What workers have computed, all of them added up."""
        self._noise = np.random.default_rng((options.seed, 2))
        self._end = end
        self._respawn: Callable[[Life], None] = lambda life: None

    def attach(self, respawn: Callable[[Life], None]) -> None:
        """Who starts workers again that were killed."""
        self._respawn = respawn

    # --- for groups and workers ------------------------------------------------------------------

    def attend(self, member: Member) -> None:
        """A worker was told something that it may have waited for."""
        if member.crew is None:
            self.gathering.enter(member)
        else:
            member.crew.attend(member)

    def recall(self, member: Member) -> None:
        """A worker was told that its group is no more."""
        if member.crew is not None:
            member.crew.parting.recall(member)

    def refuse(self, reason: str) -> None:
        """The coordinator will not have what it was told."""
        self._end(reason)

    def finish(self, member: Member) -> None:
        """A worker's script has come to its end; when all have, so has the job."""
        member.say(Goodbye(reason=FINISHED))
        member.is_gone, member.crew = True, None
        # Who hangs still thinks that it is in a team: that one was given up.
        if not any(one.crew is not None for one in self.everybody.values() if one.is_able):
            self._end(None)

    def slowdown_of(self, member: Member) -> float:
        """How many times as long as at first a worker takes, as it shows."""
        life, step = member.life, member.life.position.step
        fault = life.slow_factor if step < life.slow_until else 1.0
        noise = float(np.exp(self.scenario.noise * self._noise.standard_normal()))
        return float(self.workers.slowdown(step, now=self.now)[life.row]) * fault * noise

    # --- what befalls the workers ----------------------------------------------------------------

    def round_of(self, life: Life) -> Round | None:
        """What a worker's group is at."""
        crew = self.everybody[life.worker].crew
        return None if crew is None else crew.round

    def position_of(self, life: Life) -> Position:
        """What a worker does next."""
        crew = self.everybody[life.worker].crew
        return life.position if crew is None else crew.progress.position

    def on_hit(self, life: Life) -> None:
        """Something is about to happen to a worker."""

    def on_kill(self, life: Life) -> None:
        """A worker is dead, and may be replaced."""
        self.bury(self.everybody[life.worker])
        self._respawn(life)

    def bury(self, member: Member) -> None:
        """A worker's process has ended: its line goes down, and who is with it notices."""
        member.life.is_alive = False
        member.hang_up()
        self.gathering.bury(member)
        self.exchanges.bury(member)
        if member.crew is not None:
            member.crew.parting.bury(member)

    def on_wake(self, life: Life) -> None:
        """A worker that hung goes on."""
        member = self.everybody[life.worker]
        member.call()
        self.attend(member)

    def on_line(self, life: Life) -> None:
        """A worker's line to the coordinator went down, or came up again."""
        member = self.everybody[life.worker]
        if life.is_connected:
            member.call()
        else:
            member.hang_up()
