# SPDX-License-Identifier: Apache-2.0
"""Steps that a log sums up, cut where other reports begin or end, so that they can be compared."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

import msgspec

from gangline.spec.event import StepsDone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gangline.spec.event import StepDone, StepSummary


def cut_alike(
    reports: Sequence[StepDone | StepsDone | StepSummary], restarts: Iterable[int]
) -> Iterator[StepDone | StepsDone | StepSummary]:
    """The same reports, of which two are about the same steps or about none that both have.

    Nothing is cut where workers have summed up the same steps, as they do unless one was lost.
    """
    marks = set(restarts)
    for report in reports:
        marks.add(report.step)
        marks.add(report.step + (report.steps if isinstance(report, StepsDone) else 1))
    bounds = sorted(marks)
    for report in reports:
        if isinstance(report, StepsDone) and report.steps > 1:
            yield from _pieces(report, bounds)
        else:
            yield report


def _pieces(report: StepsDone, bounds: list[int]) -> Iterator[StepsDone]:
    end = report.step + report.steps
    inside = bounds[bisect_right(bounds, report.step) : bisect_left(bounds, end)]
    if not inside:
        yield report
        return
    for first, last in zip([report.step, *inside], [*inside, end], strict=True):
        yield part_of(report, first, last - first)


def part_of(report: StepsDone, step: int, steps: int) -> StepsDone:
    """What it says of some of its steps, each of which has the same part of everything."""
    part = steps / report.steps
    total, samples = (report.stop - report.start) // report.steps, report.samples // report.steps
    start = report.start + (step - report.step) * total
    took_s = report.t - report.since
    return msgspec.structs.replace(
        report,
        t=report.since + took_s * (step + steps - report.step) / report.steps,
        since=report.since + took_s * (step - report.step) / report.steps,
        step=step,
        steps=steps,
        samples=samples * steps,
        start=start,
        stop=start + total * steps,
        compute_s=report.compute_s * part,
        data_s=report.data_s * part,
        exchange_s=report.exchange_s * part,
        update_s=report.update_s * part,
    )
