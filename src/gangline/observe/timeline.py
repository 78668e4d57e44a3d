# SPDX-License-Identifier: Apache-2.0
"""Sorts the events of a run into steps: what each worker did in each, and who was ready last.

Nothing here compares the clocks of two workers. Who waited, and for whom, follows from durations:
the exchange ends for all at once, so the worker that was ready last saw the shortest one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gangline.observe.pauses import Pauses
from gangline.spec.event import (
    AnyEvent,
    Decision,
    EpochDone,
    EventsLost,
    GradientNotFinite,
    LogOpened,
    PacingMeasured,
    PlanMade,
    RoundEnded,
    RunEnded,
    RunStarted,
    StepDone,
    StepsDone,
    ViewAdopted,
    WorkerEnded,
    WorkerReady,
)

ORDERS = frozenset({"pause", "resume_steps", "ask_checkpoint", "end", "exclude", "take_back"})
"""What an operator may decide: it is told once each time, but maybe in the same words."""
MAX_WARM_UP_STEPS = 5
"""Of each team; the steady state leaves them out."""
_LONGEST_S = 1e9
_MOST_SAMPLES = 1 << 48
_LATEST_T = 1e12


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One optimizer update, as all workers that took part in it saw it."""

    number: int
    team: int = 0
    """Which team made it, where groups train at their own pace; teams number theirs each for itself."""
    records: Mapping[int, StepDone]
    """By worker; at least one."""
    elapsed_s: Mapping[int, float]
    """How long the step took each worker, with what its loop did after the update; without pauses."""
    exchange_s: float
    """The exchange itself: what it took once everybody was ready, and the team had its turn."""
    last_worker: int
    """Who was ready last: the worker that the others waited for."""
    turn_s: float = 0.0
    """How long the team waited for its turn at parameter servers."""

    @property
    def view(self) -> int:
        """The view that cut the step's batch."""
        return next(iter(self.records.values())).view

    @property
    def epoch(self) -> int:
        """The epoch of its samples."""
        return next(iter(self.records.values())).epoch

    @property
    def samples(self) -> int:
        """The samples of all workers, also of one that did not live to tell of them."""
        told = sum(record.samples for record in self.records.values())
        return max(told, *(record.stop - record.start for record in self.records.values()))

    def wait_s(self, worker: int) -> float:
        """How long a worker waited for slower ones, and for its team's turn."""
        return self.records[worker].exchange_s - self.exchange_s

    @property
    def caused_s(self) -> float:
        """How long all others waited for the worker that was ready last: not for the turn."""
        return sum(self.wait_s(worker) - self.turn_s for worker in self.records)


class Timeline(msgspec.Struct, kw_only=True):
    """The events of a run, by what they are about."""

    run: str = ""
    started: RunStarted | None = None
    ended: RunEnded | None = None
    """Where the job was started by a coordinator alone: when all machines that joined have ended."""
    joined_ended: RunEnded | None = None
    """The last end of a machine that joined."""
    num_joining: int = 0
    """How many machines that joined have not ended."""
    sources: set[str] = set()
    """Whose logs these are."""
    hosts: dict[int, str] = {}
    """The machine of each worker, as its log says."""
    first_t: float | None = None
    last_t: float | None = None
    steps: list[Step] = []
    epochs: set[int] = set()
    """The epochs that were finished."""
    views: dict[tuple[int, int], ViewAdopted] = {}
    """By team and number."""
    rounds: list[RoundEnded] = []
    """The merges of teams, in the order in which they ended."""
    decisions: list[Decision] = []
    pauses: Pauses = msgspec.field(default_factory=Pauses)
    plans: list[PlanMade] = []
    """In the order in which they were made."""
    ready: dict[int, WorkerReady] = {}
    pacing: dict[int, PacingMeasured] = {}
    """The last word of each emulated worker: it covers the whole run."""
    exits: dict[int, WorkerEnded] = {}
    losses: list[EventsLost] = []
    not_finite: list[GradientNotFinite] = []
    """The parts of gradients that were infinite, or not a number."""
    num_implausible: int = 0
    """Steps that were left out because no clock can have measured their times."""

    @property
    def workers(self) -> list[int]:
        """Everybody who was expected or seen."""
        seen = {worker for step in self.steps for worker in step.records}
        for view in self.views.values():
            seen.update(view.members)
        if self.started is not None:
            seen.update(range(len(self.started.nodes)))
        return sorted(seen.union(self.ready, self.pacing, self.exits))

    @property
    def is_of_one_machine(self) -> bool:
        """Whether these are the logs of a machine that joined, without those of the others."""
        has_joined = self.joined_ended is not None or self.num_joining > 0
        return has_joined and self.started is None and "coordinator" not in self.sources

    def node_of(self, worker: int) -> str:
        """The name of a worker's node; of one that joined, its machine's."""
        nodes = self.started.nodes if self.started else []
        return nodes[worker] if 0 <= worker < len(nodes) else self.hosts.get(worker, "")

    @property
    def teams(self) -> list[int]:
        """The teams that made a step; one where all workers step together."""
        return sorted({step.team for step in self.steps})

    def members_of(self, step: Step) -> frozenset[int]:
        """Who should have taken part in a step."""
        view = self.views.get((step.team, step.view))
        return frozenset(step.records if view is None else view.members)

    def is_complete(self, step: Step) -> bool:
        """Whether everybody's part of a step is in the logs."""
        return self.members_of(step) <= step.records.keys()


def build_timeline(events: Iterable[AnyEvent]) -> Timeline:
    """Sorts events, which may come in any order that keeps each worker's own."""
    timeline = Timeline()
    records: dict[tuple[int, int], dict[int, StepDone]] = {}
    for event in events:
        extend(timeline, event.t)
        if not isinstance(event, StepDone):
            place(timeline, event)
        elif is_plausible(event):
            # A step that was tried again counts as it went the last time.
            records.setdefault((event.step, event.team), {})[event.worker] = event
        else:
            timeline.num_implausible += 1
    timeline.steps = _steps_of(records, timeline.pauses)
    if timeline.started is None and not timeline.num_joining:
        timeline.ended = timeline.ended or timeline.joined_ended
    return timeline


def wall_s(timeline: Timeline) -> float:
    """From start to end, as whoever started the job has measured it; else as far as the logs reach."""
    if timeline.ended is not None and not timeline.ended.is_joining:
        return timeline.ended.wall_s
    if timeline.first_t is None or timeline.last_t is None:
        return 0.0
    return timeline.last_t - timeline.first_t


def extend(timeline: Timeline, t: float) -> None:
    """The run was under way at this time, if it can be one."""
    if abs(t) < _LATEST_T:
        timeline.first_t = t if timeline.first_t is None else min(t, timeline.first_t)
        timeline.last_t = t if timeline.last_t is None else max(t, timeline.last_t)


def place(timeline: Timeline, event: AnyEvent) -> None:
    """Puts an event that is no step where it belongs."""
    match event:
        case LogOpened():
            timeline.run = timeline.run or event.run
            timeline.sources.add(event.source)
            number = event.source.removeprefix("worker ")
            if number.isdecimal():
                timeline.hosts[int(number)] = event.host
        case RunStarted(is_joining=True):
            timeline.num_joining += 1
        case RunStarted():
            timeline.started = event
        case RunEnded(is_joining=True):
            timeline.num_joining -= 1
            timeline.joined_ended = event
        case RunEnded():
            timeline.ended = event
        case ViewAdopted():
            timeline.views.setdefault((event.team, event.view), event)
        case Decision():
            timeline.pauses.add(event)
            _add_decision(timeline.decisions, event)
        case PlanMade():
            timeline.plans.append(event)
        case WorkerReady():
            timeline.ready[event.worker] = event
        case PacingMeasured():
            timeline.pacing[event.worker] = event
        case WorkerEnded():
            timeline.exits[event.worker] = event
        case EventsLost():
            timeline.losses.append(event)
        case GradientNotFinite():
            timeline.not_finite.append(event)
        case RoundEnded():
            timeline.rounds.append(event)
        case EpochDone():
            timeline.epochs.add(event.epoch)


def _add_decision(decisions: list[Decision], event: Decision) -> None:
    """Keeps one copy of what every worker decided for itself, alike."""
    same = (event.what, event.reason, event.numbers)
    if event.what in ORDERS or not any(
        (old.what, old.reason, old.numbers) == same for old in decisions
    ):
        decisions.append(event)


def is_plausible(event: StepDone) -> bool:
    """Whether a clock can have measured these times."""
    return (  # in full: this is asked for every step of every worker
        0 <= event.compute_s < _LONGEST_S
        and 0 <= event.data_s < _LONGEST_S
        and 0 <= event.exchange_s < _LONGEST_S
        and 0 <= event.update_s < _LONGEST_S
        and 0 <= event.turn_s < _LONGEST_S
        and 0 <= event.samples < _MOST_SAMPLES
        and abs(event.t) < _LATEST_T
    )


def _steps_of(
    records: Mapping[tuple[int, int], Mapping[int, StepDone]], pauses: Pauses
) -> list[Step]:
    nobody: Mapping[int, StepDone] = {}
    kept = {key: last_tried(reports) for key, reports in records.items()}
    return [
        assemble_step(
            number,
            team,
            kept[number, team],
            before=kept.get((number - 1, team), nobody),
            pauses=pauses,
        )
        for number, team in sorted(kept)
    ]


def last_tried(records: Mapping[int, StepDone]) -> dict[int, StepDone]:
    """Without those who made the step in a group that was lost: the others made it again."""
    view = max(record.view for record in records.values())
    return {worker: record for worker, record in records.items() if record.view == view}


def assemble_step(
    number: int,
    team: int,
    records: Mapping[int, StepDone],
    *,
    before: Mapping[int, StepDone],
    pauses: Pauses,
) -> Step:
    """The step of these records; `before` has those of the step before it."""
    elapsed_s = {w: _elapsed_s(record, before.get(w), pauses) for w, record in records.items()}
    return step_of(number, team, records, elapsed_s)


def step_of(
    number: int, team: int, records: Mapping[int, StepDone], elapsed_s: Mapping[int, float]
) -> Step:
    """The step of these records, which took each worker so long."""
    last = min(records.values(), key=lambda record: (record.exchange_s, record.worker))
    turn_s = max(record.turn_s for record in records.values())  # the leader knows
    turn_s = min(turn_s, last.exchange_s)
    return Step(
        number=number,
        team=team,
        records=records,
        elapsed_s=elapsed_s,
        exchange_s=last.exchange_s - turn_s,
        last_worker=last.worker,
        turn_s=turn_s,
    )


def accounted_s(record: StepDone | StepsDone) -> float:
    """The parts of a step that its worker measured."""
    return record.data_s + record.compute_s + record.exchange_s + record.update_s


def _elapsed_s(record: StepDone, before: StepDone | None, pauses: Pauses) -> float:
    """From the end of the step before to the end of this one, without pauses.

    Between epochs, where there may be validation or a checkpoint, only the measured parts count;
    also where a clock was set back.
    """
    measured = accounted_s(record)
    if before is None or before.epoch != record.epoch:
        return measured
    paused_s = pauses.within(before.t, record.t - measured)
    return max(measured, record.t - before.t - paused_s)
