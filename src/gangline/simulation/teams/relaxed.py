# SPDX-License-Identifier: Apache-2.0
"""A simulated run whose groups train at their own pace: `sync` is not full.

    scenario = Scenario.from_toml(path)
    result = simulate_teams(
        scenario, parse_sync("flexible"), options=options, course=Course(samples=60000), epochs=2
    )

Each group of the scenario is a team, each worker without a group one of its own. Groups whose names
have a part in common, such as `lab/a` and `lab/b`, are groups of a group, which `sync` may hold
together in another way. What is decided is decided by the coordinator of a real run.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from gangline.coordinator.inputs import SyncAsked
from gangline.protocol.messages import Ready
from gangline.simulation.clock import VirtualClock
from gangline.simulation.course import Recovery
from gangline.simulation.in_step.coordinator import TICK_S
from gangline.simulation.lives import Life
from gangline.simulation.reporting import ended, respawned, started
from gangline.simulation.teams.field import Field
from gangline.simulation.teams.member import Member
from gangline.simulation.teams.switchboard import Switchboard
from gangline.spec.errors import UsageError
from gangline.spec.event import AnyEvent, EpochDone, RoundEnded, ViewAdopted
from gangline.spec.faults import Fault
from gangline.spec.sync import AUTO

if TYPE_CHECKING:
    from gangline.control import ControlOptions
    from gangline.simulation.course import Course
    from gangline.simulation.scenario import Scenario
    from gangline.simulation.world import Sink
    from gangline.spec.sync import Sync

WAIT_S = 600.0
"""How long workers wait for something to go on with, before they give up."""


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
    return TeamsSimulation(
        scenario,
        sync,
        options=options,
        course=course,
        epochs=epochs,
        sink=sink or (lambda event: None),
    ).run()


def _check(scenario: Scenario, sync: Sync, course: Course, epochs: int) -> None:
    if not sync.is_relaxed and sync.kind != AUTO and not course.switches:
        raise UsageError(f"with sync {sync} there are no teams; simulate it with `simulate`")
    structure = scenario.structure
    found = 1 if structure is None else structure.num_levels
    if (sync.levels > 1 or sync.within) and sync.levels + len(sync.rates) > found:
        raise UsageError(
            f"sync {sync} has {sync.levels + len(sync.rates)} levels, and the groups of this scenario "
            f'have {found}: name groups of groups (group = "lab/a"), or write '
            f"{str(sync).rpartition('/')[2]}"
        )
    if course.samples is None or epochs < 1:
        raise UsageError(
            f"teams share the samples of an epoch: give a number of samples and of epochs, at least "
            f"1 each, not {course.samples} and {epochs}"
        )
    course.faults.check(workers=len(scenario.worker_nodes))


class TeamsSimulation:
    """All workers, the coordinator, and the time in which they act."""

    def __init__(
        self,
        scenario: Scenario,
        sync: Sync,
        *,
        options: ControlOptions,
        course: Course,
        epochs: int,
        sink: Sink,
    ) -> None:
        self._scenario = scenario
        self._options = options
        self._course = course
        self._respawns_left = course.respawns
        self._epoch_ends_s: dict[int, float] = {}
        self._num_rounds = 0
        self._interval_s = 0.0
        self._teams: set[int] = set()
        self._problem: str | None = None
        self._is_over = False
        self._sink = sink
        self._clock = VirtualClock()
        count = len(scenario.worker_nodes)
        lives = [Life(one, row=one, faults=course.faults.of(one)) for one in range(count)]
        self._field = Field(
            scenario,
            lives,
            clock=self._clock,
            sink=self._write,
            options=options,
            course=course,
            epochs=epochs,
            end=self._end,
        )
        self._field.attach(self._respawn)
        self._board = Switchboard(
            self._field, workers=count, detector=options.detector, refuse=self._end
        )
        self._ready = Ready(
            global_batch=options.global_batch,
            minimum=self._field.minimum,
            allocation=options.allocation,
            shares=None,
            max_samples=None,
            seed=options.seed,
            structure=scenario.structure,
            gradient_bytes=int(scenario.model_bytes),
            sync=sync,
        )
        for life in lives:
            self._admit(life)

    def _admit(self, life: Life, *, replaces: int = -1) -> None:
        ceiling = self._scenario.worker_nodes[life.row].max_samples
        ready = msgspec.structs.replace(self._ready, max_samples=ceiling)
        life.lost_group_s = self._clock.now
        self._field.everybody[life.worker] = self._board.members[life.worker] = Member(
            life,
            ready,
            world=self._field,
            board=self._board,
            around=self._field,
            replaces=replaces,
        )

    def run(self) -> TeamsResult:
        """Runs to the end."""
        self._write(started(0.0, nodes=self._scenario.worker_nodes))
        self._clock.schedule(0.0, self._board.begin)
        for switch in self._course.switches:
            self._clock.schedule(
                switch.at_s, partial(self._board.hand, SyncAsked(sync=switch.sync))
            )
        for outage in self._course.outages:
            self._clock.schedule(outage.at_s, self._board.kill)
            self._clock.schedule(outage.at_s + outage.for_s, self._board.begin)
        self._clock.schedule(TICK_S, self._tick, priority=1)
        self._clock.run()
        steps = max(one.progress.position.step for one in self._field.everybody.values())
        self._sink(ended(self._clock.now, steps=steps, problem=self._problem))
        return self._result()

    def _write(self, event: AnyEvent) -> None:
        match event:
            case EpochDone(epoch=epoch):
                self._epoch_ends_s[epoch] = event.t
            case RoundEnded(is_committed=True, interval_s=interval_s):
                self._num_rounds += 1
                self._interval_s = interval_s
            case ViewAdopted(team=team):
                self._teams.add(team)
        self._sink(event)

    def _tick(self) -> None:
        field = self._field
        self._board.tick()
        for member in field.everybody.values():
            member.give_signs()
        if not self._respawns_left and not any(life.is_alive for life in field.lives):
            self._end("no worker is left")
        elif self._clock.now - field.progress_s > WAIT_S:
            self._end(f"nothing has gone on for {WAIT_S:.0f} s")
        elif not self._is_over:
            self._clock.schedule(self._clock.now + TICK_S, self._tick, priority=1)

    def _respawn(self, dead: Life) -> None:
        if self._respawns_left:
            self._respawns_left -= 1
            self._field.later(self._scenario.respawn_s, partial(self._come, dead))

    def _come(self, dead: Life) -> None:
        life = Life(len(self._field.lives), row=dead.row)
        self._field.lives.append(life)
        self._write(respawned(self._clock.now, life, dead, left=self._respawns_left))
        self._admit(life, replaces=dead.worker)
        self._field.everybody[life.worker].call()

    def _end(self, problem: str | None) -> None:
        self._problem, self._is_over = problem, True
        self._clock.stop()

    def _result(self) -> TeamsResult:
        ends = [0.0, *(self._epoch_ends_s[epoch] for epoch in sorted(self._epoch_ends_s))]
        field = self._field
        return TeamsResult(
            workers=len(field.lives),
            teams=len(self._teams),
            steps=field.num_steps,
            wall_s=self._clock.now,
            epoch_s=tuple(late - early for early, late in pairwise(ends)),
            rounds=self._num_rounds,
            interval_s=self._interval_s,
            link_bytes=field.network.crossed_bytes,
            waited_s=field.waited_s / max(1, len(self._teams)),
            computed_s=field.computed_s / len(field.lives),
            fired=tuple(field.strikes.fired),
            unreached=field.strikes.unreached,
            recoveries=tuple(field.recoveries),
            problem=self._problem,
        )
