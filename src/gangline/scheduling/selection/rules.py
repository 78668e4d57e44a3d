# SPDX-License-Identifier: Apache-2.0
"""What an expert would pick: rules over the numbers of the last loop.

| what was measured                             | what follows                                     |
|-----------------------------------------------|--------------------------------------------------|
| nothing yet                                   | small chunks of one size, until all have reported |
| one worker                                    | STATIC: one chunk                                |
| workers differ by more than their items do    | AWF-E: weights that follow the speeds            |
| they are alike, and so are their items        | GSS: few chunks                                  |
| they are alike, and the items are not         | FAC2                                             |
| a chunk's overhead beside what an item takes  | the grain: 10 items' worth of overhead at most   |
| nothing: what is cut finely is balanced well  | PERCPU, where the caller can do it               |
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gangline.scheduling.choice import Choice, Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.scheduling.measures import LoopReport

PROBE_CHUNKS = 32
"""Into how many chunks per worker a loop of which nothing is known is cut at first."""
UNLIKE = 1.15
"""Workers whose speeds differ by more are not alike."""
STEADY = 0.1
"""Items whose σ/μ is below are alike."""
OVERHEAD = 0.1
"""The overhead of the smallest chunk, beside what its items take, is at most this."""
LEAST_CHUNKS = 16
"""A grain leaves at least as many chunks per worker."""
WORTH_A_TRY = 0.03
"""Above this share of lost time, other choices get a loop each."""
WITHIN_OVERHEAD = 0.05
"""Above this share of overhead, the grain is raised within a loop."""


def probe(total: int, workers: int, layouts: Sequence[Layout]) -> tuple[Choice, str]:
    """For a loop of which nothing is known."""
    if workers == 1:
        return Choice.parse("STATIC"), "one worker does the whole loop, in one chunk"
    grain = max(1, total // (PROBE_CHUNKS * workers))
    return Choice.parse("SS", grain=grain, layout=finest(layouts)), (
        f"nothing is measured yet: chunks of {grain}, until each worker has done one"
    )


def pick(
    report: LoopReport, total: int, workers: int, layouts: Sequence[Layout]
) -> tuple[Choice, str]:
    """The scheme and the grain for a loop like the one that was measured."""
    if workers == 1:
        return probe(total, workers, layouts)
    scheme, why = _scheme(report)
    grain = grain_for(report, total, workers)
    if grain > 1:
        why += f"; a chunk costs {report.overhead_s:.2g} s, an item {report.mean_s:.2g} s"
    return Choice.parse(scheme, grain=grain, layout=finest(layouts)), why


def finest(layouts: Sequence[Layout]) -> Layout:
    """The one with the most queues: nobody waits for them, and each is cut into smaller chunks."""
    return max(layouts, key=list(Layout).index)


def grain_for(report: LoopReport, total: int, workers: int) -> int:
    """The smallest chunk whose overhead is a tenth of what its items take."""
    if report.mean_s <= 0:
        return 1
    wanted = math.ceil(report.overhead_s / (OVERHEAD * report.mean_s))
    return max(1, min(wanted, total // (LEAST_CHUNKS * workers)))


def alternatives(first: Choice, report: LoopReport, layouts: Sequence[Layout]) -> list[Choice]:
    """What else is worth a loop to try it; `first` is not among it.

    There is none where next to nothing was lost by waiting and overheads.
    """
    if report.lost_share <= WORTH_A_TRY:
        return []
    scheme, grain, layout = str(first.scheme), first.grain, first.layout
    found = [
        Choice.parse(other, grain=grain, layout=layout)
        for other in ("AWF-C", "AF")
        if other != scheme
    ]
    if layout == Layout.PERCPU:
        found.append(Choice.parse(scheme, grain=grain, layout=layout, victims="RANDOMPRI"))
    if layout != Layout.PERGROUP and Layout.PERGROUP in layouts:
        found.append(Choice.parse(scheme, grain=grain, layout=Layout.PERGROUP))
    return found


def arms(first: Choice, layouts: Sequence[Layout]) -> list[Choice]:
    """All that a learner may try beside `first`."""
    found = [
        Choice.parse(scheme, grain=first.grain, layout=layout)
        for scheme in ("AWF-E", "AWF-C", "FAC2", "AF")
        for layout in layouts
    ]
    return [one for one in found if str(one) != str(first)]


def rethink(
    report: LoopReport, choice: Choice, *, remaining: int, total: int, workers: int
) -> tuple[Choice, str] | None:
    """Within a loop: another scheme or grain for what remains, where it is worth it."""
    if remaining * 4 < total:
        return None
    if report.overhead_share > WITHIN_OVERHEAD:
        grain = min(choice.grain * 4, max(1, remaining // (LEAST_CHUNKS * workers)))
        if grain > choice.grain:
            why = f"{report.overhead_share:.0%} of the time went into getting chunks"
            return _with(choice, str(choice.scheme), grain), why
    if not _follows_speeds(choice) and _are_unlike(report):
        why = f"the fastest worker is {report.unlikeness:.2g} times as fast as the slowest"
        return _with(choice, "AWF-E", choice.grain), why
    return None


def _scheme(report: LoopReport) -> tuple[str, str]:
    if _are_unlike(report):
        return "AWF-E", (
            f"the fastest worker is {report.unlikeness:.2g} times as fast as the slowest: chunks "
            "follow their speeds"
        )
    if report.variation < STEADY:
        return "GSS", f"workers and items are alike (σ/μ = {report.variation:.2g}): few chunks"
    return "FAC2", f"workers are alike, items are not (σ/μ = {report.variation:.2g})"


def _are_unlike(report: LoopReport) -> bool:
    return report.unlikeness > UNLIKE + report.doubt


def _follows_speeds(choice: Choice) -> bool:
    return str(choice.scheme).startswith("A") and choice.scheme.is_learning


def _with(choice: Choice, scheme: str, grain: int) -> Choice:
    return Choice.parse(scheme, grain=grain, layout=choice.layout, victims=str(choice.victims))
