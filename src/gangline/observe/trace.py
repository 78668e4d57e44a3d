# SPDX-License-Identifier: Apache-2.0
"""A run as a Chrome trace: open the file in https://ui.perfetto.dev or chrome://tracing.

Each worker is a process with one row of spans: data, compute, wait, exchange, update. Views,
decisions and the ends of workers are marks across all rows. Times are those of the machine that has
the logs, as far as the clocks of the others are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangline.observe.timeline import Step, Timeline, build_timeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gangline.spec.event import AnyEvent

_US_PER_S = 1e6


def to_trace(events: Iterable[AnyEvent]) -> dict[str, Any]:
    """The events in the Trace Event Format, ready to be written as JSON."""
    timeline = build_timeline(events)
    start = _start(timeline)
    spans = [span for step in timeline.steps for span in _spans(step, start=start)]
    return {
        "displayTimeUnit": "ms",
        "traceEvents": [*_names(timeline), *spans, *_marks(timeline, start=start)],
    }


def _start(timeline: Timeline) -> float:
    """The earliest moment: a first step's beginning may be before the first event."""
    begins = [
        record.t - step.elapsed_s[worker]
        for step in timeline.steps[:1]
        for worker, record in step.records.items()
    ]
    return min([*begins, *([] if timeline.first_t is None else [timeline.first_t])], default=0.0)


def _names(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for worker in timeline.workers:
        name = timeline.node_of(worker)
        node = f" ({name})" if name else ""
        yield {
            "ph": "M",
            "name": "process_name",
            "pid": worker,
            "tid": 0,
            "args": {"name": f"worker {worker}{node}"},
        }


def _spans(step: Step, *, start: float) -> Iterator[dict[str, Any]]:
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
        for name, duration_s in parts.items():
            if duration_s > 0:
                yield {
                    "ph": "X",
                    "name": name,
                    "cat": "step",
                    "pid": worker,
                    "tid": 0,
                    "ts": begin * _US_PER_S,
                    "dur": duration_s * _US_PER_S,
                    "args": {"step": step.number, "epoch": record.epoch, "samples": record.samples},
                }
            begin += duration_s


def _marks(timeline: Timeline, *, start: float) -> Iterator[dict[str, Any]]:
    for view in timeline.views.values():
        yield _mark(f"view {view.view}", view.t - start, reason=view.reason, shares=view.shares)
    for decision in timeline.decisions:
        yield _mark(decision.what, decision.t - start, reason=decision.reason)
    for ended in timeline.exits.values():
        yield _mark(f"worker {ended.worker} ended", ended.t - start, reason=ended.reason)


def _mark(name: str, at_s: float, **details: Any) -> dict[str, Any]:
    return {
        "ph": "i",
        "s": "g",
        "name": name,
        "cat": "decision",
        "pid": 0,
        "tid": 0,
        "ts": at_s * _US_PER_S,
        "args": details,
    }
