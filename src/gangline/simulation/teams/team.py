# SPDX-License-Identifier: Apache-2.0
"""One team of a simulated job: its members, what is decided about them, and how far they have come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.control import ControlState, PublishView, Say, WorkersJoined, decide
from gangline.simulation.reporting import adopted
from gangline.simulation.views import ViewSchedule
from gangline.spec.leases import TeamOrder

if TYPE_CHECKING:
    from gangline.control import ControlEvent, ControlOptions
    from gangline.planning.allocation.bounds import Floats, Shares
    from gangline.simulation.lives import Life
    from gangline.simulation.workers import SimulatedWorkers
    from gangline.simulation.world import World
    from gangline.spec.view import View, Whole


class Team:
    """The members, their view, and their order of the epoch."""

    def __init__(self, world: World, members: tuple[int, ...], *, number: int) -> None:
        self.world = world
        self.number = number
        self.members = members
        self.whole: Whole | None = None
        self.batch = 0
        """Samples of a global batch that are this team's."""
        self.order = TeamOrder()
        """What it was given in the present epoch, as far as it has asked for it."""
        self.num_asked = 0
        self.steps_since_stop = 0
        self.is_lost = False
        self.waited_s = 0.0
        """How long it has waited for other teams."""
        self.computed_s = 0.0
        """How long its members have computed, all of them added up."""
        self._schedule = ViewSchedule(lag_steps=world.scenario.view_lag_steps)

    def found(self, options: ControlOptions, whole: Whole, *, batch: int) -> None:
        """The team begins, with this part of every global batch."""
        self.whole, self.batch = whole, batch
        # Who is slow in a team is kept: the simulated teams know no probation.
        own = msgspec.structs.replace(options, global_batch=batch, whole=whole, may_exclude=False)
        self.state = ControlState.begin(own)
        nodes = self.world.scenario.worker_nodes
        ceilings = tuple(nodes[one].max_samples or options.global_batch for one in self.members)
        self.tell(WorkersJoined(workers=self.members, max_samples=ceilings))
        self.adopt()

    # --- members ---------------------------------------------------------------------------------

    @property
    def lives(self) -> list[Life]:
        """The members, in rank order."""
        return [self.world.lives[worker] for worker in self.members]

    @property
    def leader(self) -> int:
        """Who exchanges with the other teams' leaders."""
        return self.members[0]

    @property
    def rows(self) -> list[int]:
        """Which of the scenario's workers the members are."""
        return [life.row for life in self.lives]

    @property
    def least(self) -> int:
        """The fewest samples that a step of this team can have."""
        return max(1, self.state.options.minimum) * len(self.members)

    @property
    def latency_s(self) -> float:
        """One way between its leader and the coordinator."""
        return self.world.latency_s(self.world.lives[self.leader]) / 2

    # --- decisions -------------------------------------------------------------------------------

    def tell(self, event: ControlEvent) -> None:
        """Has something decided about the members."""
        world = self.world
        self.state, commands = decide(self.state, event, world.now)
        for command in commands:
            if isinstance(command, Say):
                world.sink(command.decision)
            elif isinstance(command, PublishView):
                last_done = world.position.step - 1
                self._schedule.publish(command.view, last_done=last_done, unaware=set())

    def adopt(self, *, is_now: bool = True) -> None:
        """The newest view holds from here on; or the one whose step has come."""
        world = self.world
        view = self.state.view if is_now else self._schedule.take(world.position.step)
        if is_now:
            self._schedule.clear()
        if view is None or view is world.view:
            return
        world.view = view
        event = adopted(world.now, view, step=world.position.step)
        world.sink(msgspec.structs.replace(event, team=self.number))

    # --- samples ---------------------------------------------------------------------------------

    def begin_epoch(self) -> None:
        """It has nothing of the epoch yet."""
        self.order, self.num_asked = TeamOrder(), 0

    def compute_s(
        self, samples: Shares, *, workers: SimulatedWorkers, rng: np.random.Generator
    ) -> Floats:
        """How long each member takes for its samples in the present step."""
        world, step = self.world, self.world.position.step
        rows = np.array(self.rows, dtype=np.int64)
        slowdown = workers.slowdown(step, now=world.now)[rows]
        for rank, life in enumerate(self.lives):
            if step < life.slow_until:
                slowdown[rank] *= life.slow_factor
        return workers.selected(rows).compute_s(samples, step=step, slowdown=slowdown, rng=rng)


def view_of(team: Team) -> View:
    """The view that a team trains by."""
    assert team.world.view is not None
    return team.world.view
