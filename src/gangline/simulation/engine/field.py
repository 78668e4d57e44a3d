# SPDX-License-Identifier: Apache-2.0
"""All workers of a simulated job, in which group each of them is, and what befalls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gangline.protocol.messages import FINISHED, Goodbye
from gangline.simulation.course import Position
from gangline.simulation.engine.gathering import Gathering
from gangline.simulation.engine.merging import Exchanges
from gangline.simulation.engine.pulling import SimulatedPulls
from gangline.simulation.engine.servers import Servers
from gangline.simulation.network import Network
from gangline.simulation.strikes import Strikes
from gangline.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gangline.control import ControlOptions
    from gangline.simulation.clock import VirtualClock
    from gangline.simulation.course import Course
    from gangline.simulation.engine.crew import Crew
    from gangline.simulation.engine.member import Member
    from gangline.simulation.engine.rounds import Round
    from gangline.simulation.engine.switchboard import Switchboard
    from gangline.simulation.lives import Life
    from gangline.simulation.scenario import Scenario
    from gangline.simulation.world import Sink
    from gangline.simulation.yardstick import Yardstick
    from gangline.spec.view import View


class Extent(NamedTuple):
    """How far a job goes: to a step, or to the end of an epoch."""

    steps: int | None = None
    epochs: int | None = None


class Field(World):
    """What workers and groups share."""

    board: Switchboard

    def __init__(
        self,
        scenario: Scenario,
        lives: list[Life],
        *,
        clock: VirtualClock,
        sink: Sink,
        options: ControlOptions,
        course: Course,
        extent: Extent,
        seed: int,
        yardstick: Yardstick | None,
    ) -> None:
        """`yardstick` measures the steps of all workers, where they are in step."""
        super().__init__(scenario, lives, clock=clock, sink=sink)
        self.everybody: dict[int, Member] = {}
        self.length = course.samples
        self.steps, self.epochs = extent
        self.minimum = options.minimum
        self.allocation = options.allocation
        self.pulls = SimulatedPulls(options)
        """Where parts of global batches are pulled: who has got which."""
        self.ceilings = scenario.ceilings(global_batch=options.global_batch)
        """The most samples that each of the scenario's workers can hold."""
        self.workers = scenario.simulated_workers()
        self.network = Network(scenario, np.random.default_rng((seed, 3)))
        self.group_of = {row: i for i, rows in enumerate(scenario.groups) for row in rows}
        """Which of the scenario's groups each of its workers is in."""
        self.exchanges = Exchanges(self, self.network, self.attend)
        self.servers = Servers(self)
        self.gathering = Gathering(self)
        self.strikes = Strikes(self, course.faults, observer=self)
        self.position = Position()
        """What the furthest group does next."""
        self.num_steps = 0
        """Steps of all groups together."""
        self.waited_s = 0.0
        """What teams have waited for others, all of them added up."""
        self.computed_s = 0.0
        """What workers have computed, all of them added up."""
        self._is_finished = False
        """Whether somebody's script is over."""
        self.chance = np.random.default_rng((seed, 1))
        """Decides who has the result of a torn exchange."""
        self.noise = np.random.default_rng((seed, 2))
        """Of hops, and of what is shown."""
        self._rng = np.random.default_rng(seed)
        self._seed = seed
        self._yardstick = yardstick
        self._end: Callable[[str | None], None]
        self._look_about: Callable[[], None]
        self._respawn: Callable[[Life], None]

    def attach(
        self,
        board: Switchboard,
        *,
        end: Callable[[str | None], None],
        look_about: Callable[[], None],
        respawn: Callable[[Life], None],
    ) -> None:
        """`end` is called at the end of the job, with what went wrong, if anything did.

        `look_about` is called when something happens that only time will show; `respawn` has a worker
        started again that was killed.
        """
        self.board = board
        self._end, self._look_about, self._respawn = end, look_about, respawn

    # --- for groups and workers ------------------------------------------------------------------

    def rng_of(self, view: View) -> np.random.Generator:
        """What a group's steps are drawn with: its own, unless all workers are in it."""
        if view.whole is None:
            return self._rng
        return np.random.default_rng((self._seed, 4, 1 + view.team, view.group))

    def is_epoch_over(self, position: Position) -> bool:
        """Whether all samples of an epoch were used by workers in step; without a length, all steps."""
        if self.length is not None:
            return position.start >= self.length
        return self.steps is not None and position.step >= self.steps and position.epoch == 0

    def note_step(self, crew: Crew, done: Round) -> None:
        """A group has done a step, or some of it have."""
        if self._yardstick is not None:
            step_s = self.now - done.started_s
            self._yardstick.note(done, rows=crew.costs.rows, step_s=step_s)
        if done.is_over:
            self.num_steps += 1
            self.computed_s += float(done.compute_s.sum())
            self.position = max(self.position, done.after)

    def attend(self, member: Member) -> None:
        """A worker was told something that it may have waited for."""
        if member.crew is None:
            self.gathering.enter(member)
        else:
            member.crew.attend(member)

    def serve(self, member: Member) -> None:
        """A worker was told who holds the parameters."""
        self.servers.follow(member)

    def recall(self, member: Member) -> None:
        """A worker was told that its group is no more."""
        if member.crew is not None:
            member.crew.parting.recall(member)

    def refuse(self, reason: str) -> None:
        """The coordinator will not have what it was told."""
        self._end(reason)

    def finish(self, members: Sequence[Member], *, is_job: bool = False) -> None:
        """These workers' scripts are over; when all are, or these are the job, so is the job."""
        for member in members:
            member.say(Goodbye(reason=FINISHED))
            member.is_gone, member.crew = True, None
        self._is_finished = True
        if is_job:
            self._end(None)
        else:
            self._end_if_over()

    def _end_if_over(self) -> None:
        """Ends the job where some have finished, and nobody else is in a team.

        Who hangs still thinks that it is in one: that one was given up.
        """
        others = (one.crew is not None for one in self.everybody.values() if one.is_able)
        if self._is_finished and not any(others):
            self._end(None)

    def slowdown_of(self, member: Member) -> float:
        """How many times as long as at first a worker takes, as it shows."""
        life, step = member.life, self.position.step
        fault = life.slow_factor if step < life.slow_until else 1.0
        noise = float(np.exp(self.scenario.noise * self.noise.standard_normal()))
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
        """Something is about to happen to a worker, which was well until now."""
        self._look_about()

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
        self._end_if_over()

    def on_wake(self, life: Life) -> None:
        """A worker that hung goes on."""
        member = self.everybody[life.worker]
        member.call()
        self.attend(member)
        self.servers.tell()

    def on_line(self, life: Life) -> None:
        """A worker's line to the coordinator went down, or came up again."""
        member = self.everybody[life.worker]
        if life.is_connected:
            member.call()
        else:
            member.hang_up()
