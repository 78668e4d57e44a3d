# SPDX-License-Identifier: Apache-2.0
"""What a trace shows, whatever its format: tracks with spans, marks, counters and flows.

Each worker is a process. One track has the parts of its steps, another the units of the gradient that
its communication thread exchanges. Spans of one exchange are joined by a flow. Times are seconds since
the first moment, by the clock of the machine that has the logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gangline.observe.timeline import build_timeline
from gangline.spec.event import (
    Logged,
    StepsDone,
    StepSummary,
    UnitsExchanged,
    Utilisation,
    ViewAdopted,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gangline.observe.timeline import Step, Timeline
    from gangline.spec.event import AnyEvent

STEPS, UNITS = 0, 1
"""The tracks of a worker."""
TRACK_NAMES = {STEPS: "steps", UNITS: "exchange"}
ALL = -1
"""The process of what is said of all workers."""
_LONGEST_S = 1e9
_EARLIEST_S, _LATEST_S = -1e6, 1e9


class Span(NamedTuple):
    """Something that took its time."""

    process: int
    track: int
    name: str
    begin_s: float
    duration_s: float
    args: dict[str, Any]
    flow: int = 0
    """Spans of one flow belong together; 0: none."""


class Mark(NamedTuple):
    """Something that happened."""

    name: str
    at_s: float
    args: dict[str, Any]


class Count(NamedTuple):
    """The value of a counter from a moment on."""

    process: int
    name: str
    at_s: float
    value: float


class Scene(msgspec.Struct, kw_only=True):
    """All that a trace shows."""

    processes: dict[int, str]
    """Their names."""
    spans: list[Span]
    marks: list[Mark]
    counts: list[Count]


def read_scene(events: Iterable[AnyEvent]) -> Scene:
    """What the events of a run come to."""
    kept = list(events)
    timeline = build_timeline(kept)
    start = _start(timeline)
    spans = [span for step in timeline.steps for span in _of_step(step, start)]
    spans += [span for event in kept for span in _of_sums(event, start)]
    spans += _of_units(timeline, kept, start)
    counts = [count for event in kept for count in _counts(event, start)]
    names = {worker: _name(timeline, worker) for worker in timeline.workers}
    seen = {span.process for span in spans} | {count.process for count in counts}
    names |= {process: f"worker {process}" for process in seen - names.keys() - {ALL}}
    return Scene(
        processes={**names, ALL: "all workers"},
        spans=_in_line(
            one for one in spans if _is_shown(one.begin_s) and one.duration_s < _LONGEST_S
        ),
        marks=[one for one in _marks(timeline, start) if _is_shown(one.at_s)],
        counts=[one for one in counts if _is_shown(one.at_s)],
    )


def _in_line(spans: Iterable[Span]) -> list[Span]:
    """On each track one after the other: steps are measured by a clock, and dated by another."""
    found: list[Span] = []
    ends: dict[tuple[int, int], float] = {}
    for span in sorted(spans, key=lambda one: one.begin_s):
        track = (span.process, span.track)
        begin_s = max(span.begin_s, ends.get(track, span.begin_s))
        end_s = max(begin_s, span.begin_s + span.duration_s)
        ends[track] = end_s
        found.append(span._replace(begin_s=begin_s, duration_s=end_s - begin_s))
    return found


def _is_shown(at_s: float) -> bool:
    """Whether a clock can have said so."""
    return _EARLIEST_S < at_s < _LATEST_S


def _start(timeline: Timeline) -> float:
    """The earliest moment: a first step's beginning may be before the first event."""
    begins = [
        record.t - step.elapsed_s[worker]
        for step in timeline.steps[:1]
        for worker, record in step.records.items()
    ]
    return min([*begins, *([] if timeline.first_t is None else [timeline.first_t])], default=0.0)


def _name(timeline: Timeline, worker: int) -> str:
    node = timeline.node_of(worker)
    return f"worker {worker} ({node})" if node else f"worker {worker}"


def _of_step(step: Step, start: float) -> Iterator[Span]:
    flow = 1 + step.number * 4096 + step.team % 4096 if len(step.records) > 1 else 0
    for worker, record in step.records.items():
        wait_s = step.wait_s(worker)
        parts = {
            "data": record.data_s,
            "compute": record.compute_s,
            "wait": wait_s,
            "exchange": record.exchange_s - wait_s,
            "update": record.update_s,
        }
        begin = record.t - sum(parts.values()) - start
        args = {"step": step.number, "epoch": record.epoch, "samples": record.samples}
        for name, duration_s in parts.items():
            if duration_s > 0:
                own = flow if name == "exchange" else 0
                yield Span(worker, STEPS, name, begin, duration_s, args, own)
            begin += duration_s


def _of_sums(event: AnyEvent, start: float) -> Iterator[Span]:
    """Steps that a log sums up: of several steps, or of all workers."""
    if isinstance(event, StepsDone):
        args = {"step": event.step, "steps": event.steps, "samples": event.samples}
        args |= {name: getattr(event, name) for name in ("compute_s", "data_s", "exchange_s")}
        took_s = max(0.0, event.t - event.since)
        name = f"{event.steps} steps"
        yield Span(event.worker, STEPS, name, event.since - start, took_s, args)
    elif isinstance(event, StepSummary):
        args = {"step": event.step, "workers": event.workers, "samples": event.samples}
        parts = {
            "compute": event.greatest_compute_s,
            "exchange": event.exchange_s,
            "update": event.update_s,
        }
        begin = event.t - sum(parts.values()) - start
        for name, duration_s in parts.items():
            if duration_s > 0:
                yield Span(ALL, STEPS, name, begin, duration_s, args)
            begin += duration_s


def _of_units(timeline: Timeline, events: Sequence[AnyEvent], start: float) -> list[Span]:
    """The units, from when the step's batch was handed out."""
    begins = {
        (worker, step.number): record.t
        - (record.compute_s + record.exchange_s + record.update_s)
        - start
        for step in timeline.steps
        for worker, record in step.records.items()
    }
    return [
        Span(
            event.worker,
            UNITS,
            f"unit {unit}",
            begins[event.worker, event.step] + begin_s,
            max(0.0, end_s - begin_s),
            {"step": event.step, "unit": unit, "waited_s": begin_s - ready_s},
        )
        for event in events
        if isinstance(event, UnitsExchanged) and (event.worker, event.step) in begins
        for unit, ready_s, begin_s, end_s in event.units
    ]


def _counts(event: AnyEvent, start: float) -> Iterator[Count]:
    at_s = event.t - start
    match event:
        case ViewAdopted():
            for worker, share in zip(event.members, event.shares, strict=False):
                yield Count(worker, "share", at_s, share)
        case Utilisation(worker=worker):
            yield Count(worker, "cores", at_s, event.cpu)
            yield Count(worker, "memory (MiB)", at_s, event.memory_bytes / (1 << 20))
            if event.gpu is not None:
                yield Count(worker, "gpu", at_s, event.gpu)
        case Logged(worker=worker):
            for name, value in event.values.items():
                if value is not None:
                    yield Count(worker, name, at_s, value)


def _marks(timeline: Timeline, start: float) -> Iterator[Mark]:
    for view in timeline.views.values():
        args = {"reason": view.reason, "shares": view.shares}
        yield Mark(f"view {view.view}", view.t - start, args)
    for decision in timeline.decisions:
        yield Mark(decision.what, decision.t - start, {"reason": decision.reason})
    for ended in timeline.exits.values():
        yield Mark(f"worker {ended.worker} ended", ended.t - start, {"reason": ended.reason})
