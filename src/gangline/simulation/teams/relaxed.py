# SPDX-License-Identifier: Apache-2.0
"""A simulated run whose groups train at their own pace: `sync` is not full.

    scenario = Scenario.from_toml(path)
    result = simulate_teams(
        scenario, parse_sync("flexible"), options=options, course=Course(samples=60000), epochs=2
    )

Each group of the scenario is a team, each worker without a group one of its own. Left out: what a team
does about a member that hangs while others of it do not (it waits), workers cut from the coordinator,
and workers that are started again.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.control.shares.parts import divide
from gangline.simulation.clock import VirtualClock
from gangline.simulation.course import Recovery
from gangline.simulation.in_step.coordinator import TICK_S
from gangline.simulation.lives import Life
from gangline.simulation.network import Network
from gangline.simulation.reporting import ended, started
from gangline.simulation.teams.federation import Federation, wholes_of
from gangline.simulation.teams.pacing import Pace
from gangline.simulation.teams.team import Team
from gangline.simulation.world import World
from gangline.spec.errors import UsageError
from gangline.spec.event import AnyEvent, EpochDone
from gangline.spec.faults import Fault, FaultPlan

if TYPE_CHECKING:
    from gangline.control import ControlOptions
    from gangline.simulation.course import Course
    from gangline.simulation.scenario import Scenario
    from gangline.simulation.world import Sink
    from gangline.spec.sync import Sync

_KINDS = ("kill", "hang", "slow")


class TeamsResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a simulated run whose groups train at their own pace."""

    workers: int
    teams: int
    steps: int
    """Steps of all teams together."""
    wall_s: float
    """Virtual seconds."""
    epoch_s: tuple[float, ...]
    """What each epoch took."""
    rounds: int
    """Merges that count."""
    interval_s: float
    """`flexible`: the time from one merge to the next, at the end."""
    link_bytes: float
    """What was sent over limited links."""
    waited_s: float
    """What a team has waited for others, on average."""
    computed_s: float
    """What a worker has computed, on average."""
    fired: tuple[Fault, ...]
    """The faults that happened."""
    unreached: tuple[Fault, ...]
    """The faults that the run did not come to."""
    recoveries: tuple[Recovery, ...]
    """Teams that lost members, and went on."""
    problem: str | None
    """Why the run ended early; None if it did not."""


def simulate_teams(
    scenario: Scenario,
    sync: Sync,
    *,
    options: ControlOptions,
    course: Course,
    epochs: int,
    sink: Sink | None = None,
) -> TeamsResult:
    """Runs so many epochs of `course.samples` each; `sink` gets the events that a real run logs."""
    _check(scenario, sync, course, epochs)
    run = TeamsSimulation(scenario, sync, options=options, course=course, epochs=epochs)
    run.attach(sink or (lambda event: None))
    return run.run()


def _check(scenario: Scenario, sync: Sync, course: Course, epochs: int) -> None:
    if not sync.is_relaxed:
        raise UsageError(f"with sync {sync} there are no teams; simulate it with `simulate`")
    if sync.levels > 1 or sync.within:
        raise UsageError(
            f"sync {sync} has several levels, and groups in a scenario are one: "
            f"write {str(sync).rpartition('/')[2]}"
        )
    if course.samples is None or epochs < 1:
        raise UsageError(
            f"teams share the samples of an epoch: give a number of samples and of epochs, at least "
            f"1 each, not {course.samples} and {epochs}"
        )
    course.faults.check(workers=len(scenario.worker_nodes))
    kinds = {fault.kind for fault in course.faults.faults} - set(_KINDS)
    if kinds or course.respawns:
        what = "workers that are started again" if course.respawns else f"the fault {min(kinds)}"
        raise UsageError(
            f"with sync {sync} the simulator knows the faults {', '.join(_KINDS)}, and not {what}; "
            "leave that out, or simulate full"
        )


class TeamsSimulation:
    """All teams, the coordinator, and the time in which they act."""

    def __init__(
        self,
        scenario: Scenario,
        sync: Sync,
        *,
        options: ControlOptions,
        course: Course,
        epochs: int,
    ) -> None:
        self._scenario = scenario
        self._sync = sync
        self._options = options
        self._course = course
        self._epochs = epochs
        self._clock = VirtualClock()
        self._epoch_ends_s: dict[int, float] = {}
        self._problem: str | None = None
        self._num_finished = 0

    def attach(self, sink: Sink) -> None:
        """Puts everything together; `sink` gets the events."""

        def write(event: AnyEvent) -> None:
            if isinstance(event, EpochDone):
                self._epoch_ends_s[event.epoch] = event.t
            sink(event)

        scenario, options = self._scenario, self._options
        seed = options.seed
        self._sink = write
        self._network = Network(scenario, np.random.default_rng((seed, 3)))
        self._federation = Federation(
            scenario,
            self._sync,
            global_batch=options.global_batch,
            clock=self._clock,
            sink=write,
            network=self._network,
        )
        faults = self._course.faults
        count = len(scenario.worker_nodes)
        self._lives = [Life(one, row=one, faults=faults.of(one)) for one in range(count)]
        self._teams = [
            Team(World(scenario, self._lives, clock=self._clock, sink=write), group, number=number)
            for number, group in enumerate(scenario.groups)
        ]
        self._paces = [self._pace(team) for team in self._teams]

    def _pace(self, team: Team) -> Pace:
        own = [one for one in self._course.faults.faults if one.worker in team.members]
        pace = Pace(
            team,
            self._federation,
            self._network,
            workers=self._scenario.simulated_workers(),
            rng=np.random.default_rng((self._options.seed, 4, team.number)),
            plan=FaultPlan(faults=tuple(own)),
        )
        assert self._course.samples is not None
        pace.attach(length=self._course.samples, epochs=self._epochs, finish=self._finish)
        self._federation.admit(pace)
        return pace

    def run(self) -> TeamsResult:
        """Runs to the end."""
        self._sink(started(0.0, nodes=self._scenario.worker_nodes))
        minimum = max(1, self._options.minimum)
        parts = divide(
            self._options.global_batch,
            {team.number: float(len(team.members)) for team in self._teams},
            {team.number: minimum * len(team.members) for team in self._teams},
        )
        for team in self._teams:
            team.batch = parts[team.number]
        wholes = wholes_of(self._teams, self._options.global_batch)
        for team, whole in zip(self._teams, wholes, strict=True):
            team.found(self._options, whole, batch=team.batch)
        for pace in self._paces:
            self._clock.schedule(0.0, pace.go_on)
        self._clock.schedule(TICK_S, self._tick, priority=1)
        self._clock.run()
        steps = max(team.world.position.step for team in self._teams)
        self._sink(ended(self._clock.now, steps=steps, problem=self._problem))
        return self._result()

    def _tick(self) -> None:
        self._federation.tick()
        if not any(life.is_alive for team in self._federation.teams for life in team.lives):
            self._problem = "no worker is left"
            self._clock.stop()
        else:
            self._clock.schedule(self._clock.now + TICK_S, self._tick, priority=1)

    def _finish(self) -> None:
        self._num_finished += 1
        if self._num_finished >= len(self._federation.teams):
            self._clock.stop()

    def _result(self) -> TeamsResult:
        ends = [0.0, *(self._epoch_ends_s[epoch] for epoch in sorted(self._epoch_ends_s))]
        count = len(self._teams)
        return TeamsResult(
            workers=len(self._lives),
            teams=count,
            steps=sum(team.world.position.step for team in self._teams),
            wall_s=self._clock.now,
            epoch_s=tuple(late - early for early, late in pairwise(ends)),
            rounds=self._federation.num_rounds,
            interval_s=self._federation.rounds.interval_s,
            link_bytes=self._network.crossed_bytes,
            waited_s=sum(team.waited_s for team in self._teams) / count,
            computed_s=sum(team.computed_s for team in self._teams) / len(self._lives),
            fired=tuple(fault for pace in self._paces for fault in pace.losses.strikes.fired),
            unreached=tuple(
                fault for pace in self._paces for fault in pace.losses.strikes.unreached
            ),
            recoveries=tuple(one for team in self._teams for one in team.world.recoveries),
            problem=self._problem,
        )
