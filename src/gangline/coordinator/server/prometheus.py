# SPDX-License-Identifier: Apache-2.0
"""What the coordinator knows, in the text format that Prometheus reads."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gangline.protocol.status import Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STATES = ("connected", "ready", "training", "leaving", "lost", "gone")

_Sample = tuple["Mapping[str, str]", float]


def to_text(status: Status) -> str:
    """All metrics of a job, each with what it means."""
    return "".join(
        line
        for name, kind, meaning, samples in _metrics(status)
        for line in _lines(name, kind, meaning, samples)
    )


def _metrics(status: Status) -> Iterator[tuple[str, str, str, list[_Sample]]]:
    view = status.view
    yield "gangline_job_info", "gauge", "The job's name; always 1.", [({"run": status.run}, 1)]
    yield "gangline_step", "gauge", "The last step that all members reported.", [({}, status.step)]
    yield (
        "gangline_samples_total",
        "counter",
        "Samples of all steps that workers reported, steps that were done again included.",
        [({}, status.samples)],
    )
    yield (
        "gangline_view",
        "gauge",
        "The number of the view: it grows when members or shares change.",
        [({}, -1 if view is None else view.number)],
    )
    states = Counter(worker.state for worker in status.workers)
    known = dict.fromkeys(STATES, 0) | states
    yield (
        "gangline_workers",
        "gauge",
        "Workers by state.",
        [({"state": state}, count) for state, count in known.items()],
    )
    yield (
        "gangline_workers_expected",
        "gauge",
        "Workers that found the job.",
        [({}, status.expected_workers)],
    )
    yield from _of_workers(status)
    yield (
        "gangline_logged",
        "gauge",
        "What the scripts log: the mean over all samples of the newest step.",
        [
            ({"name": name}, float("nan") if value is None else value)
            for name, value in status.logged.items()
        ],
    )


def _of_workers(status: Status) -> Iterator[tuple[str, str, str, list[_Sample]]]:
    view = status.view
    shares = {} if view is None else dict(zip(view.members, view.shares, strict=True))
    labels = {one.worker: {"worker": str(one.worker), "host": one.host} for one in status.workers}
    yield (
        "gangline_worker_up",
        "gauge",
        "Whether a worker is connected.",
        [(labels[one.worker], float(one.is_connected)) for one in status.workers],
    )
    yield (
        "gangline_worker_share_samples",
        "gauge",
        "A worker's share of the global batch; 0 where it is out.",
        [(labels[one.worker], float(shares.get(one.worker, 0))) for one in status.workers],
    )
    yield (
        "gangline_worker_step",
        "gauge",
        "The last step that a worker reported.",
        [(labels[one.worker], float(one.step)) for one in status.workers],
    )
    yield (
        "gangline_worker_compute_seconds",
        "gauge",
        "How long a worker computed in its last step.",
        [(labels[one.worker], one.compute_s) for one in status.workers],
    )


def _lines(name: str, kind: str, meaning: str, samples: list[_Sample]) -> Iterator[str]:
    yield f"# HELP {name} {meaning}\n"
    yield f"# TYPE {name} {kind}\n"
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        yield f"{name}{f'{{{inside}}}' if inside else ''} {_number(value)}\n"


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _escaped(text: str) -> str:
    """Hosts and names come from others: they must not end their line."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
