# SPDX-License-Identifier: Apache-2.0
"""A simulated run whose groups train at their own pace: `sync` is not full.

    scenario = Scenario.from_toml(path)
    result = simulate_teams(
        scenario, parse_sync("flexible"), options=options, course=Course(samples=60000), epochs=2
    )

Each group of the scenario is a team, each worker without a group one of its own. Groups whose names
have a part in common, such as `lab/a` and `lab/b`, are groups of a group, which `sync` may hold
together in another way.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from gangline.simulation.course import Recovery
from gangline.simulation.engine.field import Extent
from gangline.simulation.engine.job import SimulatedJob, ready_for
from gangline.spec.errors import UsageError
from gangline.spec.event import (
    AnyEvent,
    EpochDone,
    RoundEnded,
    UpdateApplied,
    UpdateVoided,
    ViewAdopted,
)
from gangline.spec.faults import Fault
from gangline.spec.serving import AT_STEP, CHANGED
from gangline.spec.sync import AUTO, parse_sync

if TYPE_CHECKING:
    from gangline.control import ControlOptions
    from gangline.simulation.course import Course
    from gangline.simulation.scenario import Scenario
    from gangline.simulation.world import Sink
    from gangline.spec.serving import Service
    from gangline.spec.sync import Sync


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
    updates: int
    """Of parameter servers."""
    staleness: float
    """Of an update, on average."""
    dropped: int
    """Pushes that came too late for their round."""
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
    options = msgspec.structs.replace(options, minimum=max(1, options.minimum))
    seen = _Seen(sink or (lambda event: None))
    ready = ready_for(scenario, options, structure=scenario.structure, sync=sync)
    job = SimulatedJob(
        scenario,
        ready,
        options=options,
        course=course,
        extent=Extent(epochs=epochs),
        seed=options.seed,
        sink=seen.write,
    )
    job.run()
    return seen.result(job)


def _check(scenario: Scenario, sync: Sync, course: Course, epochs: int) -> None:
    if not sync.is_relaxed and sync.kind != AUTO and not course.switches:
        raise UsageError(f"with sync {sync} there are no teams; simulate it with `simulate`")
    for asked in (sync, *(parse_sync(switch.sync) for switch in course.switches)):
        if asked.service is not None:
            _check_service(asked.service)
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


def _check_service(service: Service) -> None:
    """Refuses what would change the time of a run, and is not simulated."""
    for is_asked, what, name in (
        (service.pull != AT_STEP, "pulls during the forward pass are", "pull="),
        (service.ahead > 0, "pushes and pulls beside the next step are", "ahead="),
        (service.rows != CHANGED, "rows that are fetched when batches use them are", "rows="),
    ):
        if is_asked:
            raise UsageError(f"sync {service}: {what} not simulated; leave out {name}")


class _Seen:
    """What the events of a run come to, besides going on to where they go."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._epoch_ends_s: dict[int, float] = {}
        self._num_rounds = 0
        self._interval_s = 0.0
        self._teams: set[int] = set()
        self._staleness: list[int] = []
        self._num_dropped = 0

    def write(self, event: AnyEvent) -> None:
        """Takes the next event."""
        match event:
            case EpochDone(epoch=epoch):
                self._epoch_ends_s[epoch] = event.t
            case RoundEnded(is_committed=True, interval_s=interval_s):
                self._num_rounds += 1
                self._interval_s = interval_s
            case UpdateApplied(staleness=staleness):
                self._staleness.append(staleness)
            case UpdateVoided(clock=clock) if clock >= 0:
                self._num_dropped += 1
            case ViewAdopted(team=team):
                self._teams.add(team)
        self._sink(event)

    def result(self, job: SimulatedJob) -> TeamsResult:
        """What came of a job that is over."""
        ends = [0.0, *(self._epoch_ends_s[epoch] for epoch in sorted(self._epoch_ends_s))]
        field = job.field
        return TeamsResult(
            workers=len(field.lives),
            teams=len(self._teams),
            steps=field.num_steps,
            wall_s=job.now,
            epoch_s=tuple(late - early for early, late in pairwise(ends)),
            rounds=self._num_rounds,
            updates=len(self._staleness),
            staleness=sum(self._staleness) / max(1, len(self._staleness)),
            dropped=self._num_dropped,
            interval_s=self._interval_s,
            link_bytes=field.network.crossed_bytes,
            waited_s=field.waited_s / max(1, len(self._teams)),
            computed_s=field.computed_s / len(field.lives),
            fired=tuple(field.strikes.fired),
            unreached=field.strikes.unreached,
            recoveries=tuple(field.recoveries),
            problem=job.problem,
        )
