# SPDX-License-Identifier: Apache-2.0
"""A trace in the Trace Event Format: JSON, which many tools read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangline.observe.tracing.scene import ALL, TRACK_NAMES, read_scene

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gangline.observe.tracing.scene import Scene, Span
    from gangline.spec.event import AnyEvent

_US_PER_S = 1e6
_ALL = 1 << 20
"""The process of all workers: the format knows no negative ones."""


def to_trace(events: Iterable[AnyEvent]) -> dict[str, Any]:
    """The events in the Trace Event Format, ready to be written as JSON."""
    scene = read_scene(events)
    return {
        "displayTimeUnit": "ms",
        "traceEvents": [
            *_names(scene),
            *(_slice(span) for span in scene.spans),
            *_flows(scene),
            *_counters(scene),
            *_marks(scene),
        ],
    }


def _place(process: int, track: int = 0) -> dict[str, int]:
    return {"pid": _ALL if process == ALL else process, "tid": track}


def _names(scene: Scene) -> Iterator[dict[str, Any]]:
    used = {(span.process, span.track) for span in scene.spans}
    for process, name in scene.processes.items():
        yield {"ph": "M", "name": "process_name", **_place(process), "args": {"name": name}}
    for process, track in sorted(used):
        title = {"name": TRACK_NAMES[track]}
        yield {"ph": "M", "name": "thread_name", **_place(process, track), "args": title}


def _slice(span: Span) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.name,
        "cat": "step",
        **_place(span.process, span.track),
        "ts": span.begin_s * _US_PER_S,
        "dur": span.duration_s * _US_PER_S,
        "args": span.args,
    }


def _flows(scene: Scene) -> Iterator[dict[str, Any]]:
    """From the first span of a flow through the others to the last."""
    members: dict[int, list[Span]] = {}
    for span in scene.spans:
        if span.flow:
            members.setdefault(span.flow, []).append(span)
    for flow, spans in members.items():
        ordered = sorted(spans, key=lambda span: (span.begin_s, span.process))
        phases = ["s", *("t" for _ in ordered[2:]), "f"][: len(ordered)]
        for phase, span in zip(phases, ordered, strict=True):
            yield {
                "ph": phase,
                "id": flow,
                "name": "exchange",
                "cat": "exchange",
                "bp": "e",
                **_place(span.process, span.track),
                "ts": span.begin_s * _US_PER_S,
            }


def _counters(scene: Scene) -> Iterator[dict[str, Any]]:
    for count in scene.counts:
        yield {
            "ph": "C",
            "name": count.name,
            **_place(count.process),
            "ts": count.at_s * _US_PER_S,
            "args": {"value": count.value},
        }


def _marks(scene: Scene) -> Iterator[dict[str, Any]]:
    for mark in scene.marks:
        yield {
            "ph": "i",
            "s": "g",
            "name": mark.name,
            "cat": "decision",
            **_place(ALL),
            "ts": mark.at_s * _US_PER_S,
            "args": mark.args,
        }
