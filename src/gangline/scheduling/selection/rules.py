# SPDX-License-Identifier: Apache-2.0
"""What an expert would pick: rules over the numbers of the last loop.

| what was measured                             | what follows                                     |
|-----------------------------------------------|--------------------------------------------------|
| nothing yet                                   | small chunks of one size, until all have reported |
| one worker                                    | STATIC: one chunk                                |
| workers and items are alike                   | GSS: few chunks                                  |
| workers or items are not                      | AWF-E: chunks that follow the speeds             |
| a chunk's overhead beside what the loop takes | x of AWF-E: how small these chunks are           |
| a chunk's overhead beside what an item takes  | the grain: 10 items' worth of overhead at most   |
| several groups                                | PERGROUP, where the caller can do it             |
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
FINENESS = (8, 4, 2)
"""x of AWF-E, for workers or items that are not alike. 2 is published; the more the better, since
speeds are learnt from some items and used for others, which may cost much more."""
CHUNKS_COST = 0.025
"""What all chunks together may cost, beside the items, as far as x goes."""
STEADY = 0.1
"""Items whose σ/μ is below are alike."""
OVERHEAD = 0.1
"""The overhead of the smallest chunk, beside what its items take, is at most this."""
LEAST_CHUNKS = 16
"""A grain leaves at least as many chunks per worker."""
SHORT = 8
"""A loop is short if as many chunks of each worker would cost too much, beside their items."""
TAIL = 0.05
"""A grain takes the slowest worker at most this part of the loop."""
WORTH_A_TRY = 0.03
"""Above this share of lost time, other choices get a loop each."""
DEAR = 0.5
"""Chunks that cost more than this part of an item are dear, and so is stealing."""
WITHIN_OVERHEAD = 0.05
"""Above this share of overhead, the grain is raised within a loop."""


def probe(total: int, workers: int, layouts: Sequence[Layout]) -> tuple[Choice, str]:
    """For a loop of which nothing is known."""
    if workers == 1:
        return Choice.parse("STATIC"), "one worker does the whole loop, in one chunk"
    grain = max(1, total // (PROBE_CHUNKS * workers))
    return Choice.parse("SS", grain=grain, layout=first_layout(layouts)), (
        f"nothing is measured yet: chunks of {grain}, until each worker has done one"
    )


def pick(
    report: LoopReport, total: int, workers: int, layouts: Sequence[Layout]
) -> tuple[Choice, str]:
    """The scheme and the grain for a loop like the one that was measured."""
    if workers == 1:
        return probe(total, workers, layouts)
    grain = grain_for(report, total, workers)
    if 2 * grain * workers > total and grain > 1:
        why = (
            f"a chunk costs {report.overhead_s:.2g} s, the whole loop {total * report.mean_s:.2g} s"
        )
        return Choice.parse("STATIC", layout=first_layout(layouts)), why
    scheme, why = _scheme(report, varied(report, total, workers, grain=grain))
    if grain > 1:
        why += f"; a chunk costs {report.overhead_s:.2g} s, an item {report.mean_s:.2g} s"
    return Choice.parse(scheme, grain=grain, layout=first_layout(layouts)), why


def first_layout(layouts: Sequence[Layout]) -> Layout:
    """A queue for each group keeps data where they lie, and is stolen from seldom."""
    order = (Layout.PERGROUP, Layout.CENTRALIZED, Layout.PERCPU)
    return min(layouts, key=order.index)


def grain_for(report: LoopReport, total: int, workers: int) -> int:
    """The smallest chunk whose overhead is a tenth of what its items take.

    It is not so large that the slowest worker could keep the others waiting for long with one, unless
    the loop is short: then even that is less than what more chunks would cost.
    """
    if report.mean_s <= 0 or not report.rates:
        return 1
    wanted = math.ceil(report.overhead_s / (OVERHEAD * report.mean_s))
    if total < SHORT * workers * wanted and report.unlikeness < SHORT:
        return max(1, min(wanted, math.ceil(total / workers)))
    slowest = min(report.rates.values()) / sum(report.rates.values())
    return max(1, min(wanted, total // (LEAST_CHUNKS * workers), int(TAIL * total * slowest)))


def alternatives(first: Choice, report: LoopReport, layouts: Sequence[Layout]) -> list[Choice]:
    """What else is worth a loop to try it; `first` is not among it.

    There is none where next to nothing was lost by waiting and overheads.
    """
    if report.lost_share <= WORTH_A_TRY:
        return []
    scheme, grain = str(first.scheme), first.grain
    if grain > 1 and SHORT * grain * len(report.rates) > report.items:
        return [Choice.parse("STATIC", layout=first.layout)]
    if scheme == "STATIC":
        return [Choice.parse("FAC2", grain=max(1, report.items // SHORT), layout=first.layout)]
    others = ["FAC2"] if scheme == "GSS" else [one for x in FINENESS if (one := _fine(x)) != scheme]
    found = [Choice.parse(other, grain=grain, layout=first.layout) for other in others]
    if Layout.CENTRALIZED in layouts and report.overhead_s > DEAR * report.mean_s:
        found.append(Choice.parse(scheme, grain=grain))  # of one queue nobody steals
    if Layout.PERCPU in layouts:
        stolen = Choice.parse(scheme, grain=grain, layout=Layout.PERCPU, victims="RANDOMPRI")
        found.append(stolen)
    return [one for one in found if str(one) != str(first)]


def arms(first: Choice, layouts: Sequence[Layout]) -> list[Choice]:
    """All that a learner may try beside `first`."""
    found = [
        Choice.parse(scheme, grain=first.grain, layout=layout)
        for scheme in map(_fine, FINENESS)
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
        grain = min(choice.grain * 4, grain_for(report, remaining, workers))
        if grain > choice.grain:
            why = f"{report.overhead_share:.0%} of the time went into getting chunks"
            return _with(choice, str(choice.scheme), grain), why
    if not _follows_speeds(choice) and _are_unlike(report):
        why = f"the fastest worker is {report.unlikeness:.2g} times as fast as the slowest"
        fine = varied(report, remaining, workers, grain=choice.grain)
        return _with(choice, fine, choice.grain), why
    return None


def varied(report: LoopReport, total: int, workers: int, *, grain: int) -> str:
    """AWF-E, with small chunks if their overheads take no more than a fortieth of the loop.

    Those of the published size are an alternative that is tried, never the first choice: a loop whose
    expensive items come first takes half as long again with them.

    While chunks are above the grain, each takes 1/xP of what remains: about x·P·ln(N/xPg) of them.
    Then there are x·P grains.
    """
    for x in FINENESS[:-1]:
        tail = x * workers
        chunks = tail * (1 + math.log(max(1.0, total / (tail * grain))))
        if chunks * report.overhead_s <= CHUNKS_COST * total * report.mean_s:
            break
    return _fine(x)


def _fine(x: int) -> str:
    return f"AWF-E(x={x})"


def _scheme(report: LoopReport, varied: str) -> tuple[str, str]:
    if _are_unlike(report):
        return varied, (
            f"the fastest worker is {report.unlikeness:.2g} times as fast as the slowest: chunks "
            "follow their speeds"
        )
    if report.variation < STEADY:
        return "GSS", f"workers and items are alike (σ/μ = {report.variation:.2g}): few chunks"
    return varied, f"items are not alike (σ/μ = {report.variation:.2g}): many chunks"


def _are_unlike(report: LoopReport) -> bool:
    return report.unlikeness > UNLIKE + report.doubt


def _follows_speeds(choice: Choice) -> bool:
    return choice.scheme.shares_speeds or choice.scheme.name == "AF"


def _with(choice: Choice, scheme: str, grain: int) -> Choice:
    return Choice.parse(scheme, grain=grain, layout=choice.layout, victims=str(choice.victims))
