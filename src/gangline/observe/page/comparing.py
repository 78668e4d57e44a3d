# SPDX-License-Identifier: Apache-2.0
"""Runs beside each other: their figures, and ratios to the first with intervals.

Steps that follow each other are alike, so single steps would make an interval too narrow. The steady
part of each run is cut into 20 stretches, whose rates are compared by their logarithms (Welch): the
interval holds the ratio with 95 % confidence if stretches vary at random.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gangline.observe.page.accounts import Accounts
from gangline.observe.page.bill import Price, amount, make_bill, node_hours, percent
from gangline.observe.report import number, seconds
from gangline.observe.timeline import MAX_WARM_UP_STEPS, wall_s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gangline.observe.page.cells import Floats
    from gangline.observe.page.fold import Fold

_STRETCHES = 20
_FEWEST_STRETCHES = 5


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """A run's figure over the first run's."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.3g} times"
        return f"{self.value:.3g} times [{self.low:.3g}, {self.high:.3g}]"


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of all runs."""

    label: str
    values: list[float | None]
    shown: list[str]
    ratios: list[Ratio | None]
    """To the first run; None for that one, and where there is nothing to compare."""

    def cells(self) -> list[str]:
        """What a table shows of each run."""
        pairs = zip(self.shown, self.ratios, strict=True)
        return [text if ratio is None else f"{text} ({ratio})" for text, ratio in pairs]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What `gangline compare` says."""

    runs: list[str]
    lines: list[Line]

    def document(self) -> dict[str, Any]:
        """For the page."""
        rows = [{"label": line.label, "values": line.cells()} for line in self.lines]
        return {"runs": self.runs, "rows": rows}


def compare_runs(names: Sequence[str], folds: Sequence[Fold], *, price: Price) -> Comparison:
    """The figures of runs that are folded already."""
    figures = [_figures(fold, price) for fold in folds]
    rates = [_rates(fold) for fold in folds]
    lines = [
        _line(label, [own[label] for own in figures], show)
        for label, show in _shown(price).items()
        if any(own[label] is not None for own in figures)
    ]
    kept = [_with_intervals(line, rates) for line in lines]
    return Comparison(runs=list(names), lines=kept)


def _shown(price: Price) -> dict[str, Callable[[float], str]]:
    """The figures, and how each is written."""
    return {
        "samples/s": number,
        "a step, on average": seconds,
        "efficiency": percent,
        "waiting, in steps": percent,
        "exchanging, in steps": percent,
        "from start to end": seconds,
        "time of all nodes": node_hours,
        "money": lambda money: amount(money, price.currency),
        "samples": lambda samples: f"{samples:,.0f}",
    }


def _figures(fold: Fold, price: Price) -> dict[str, float | None]:
    accounts = Accounts(fold)
    pace = fold.pace()
    bill = make_bill(accounts, price)
    in_steps_s = sum(accounts.in_steps_s(one) for one in accounts.workers)

    def part(kind: str) -> float | None:
        spent_s = sum(accounts.spent_s(one, kind) for one in accounts.workers)
        return spent_s / in_steps_s if in_steps_s > 0 else None

    return {
        "samples/s": pace.throughput,
        "a step, on average": pace.step_s,
        "efficiency": pace.efficiency,
        "waiting, in steps": part("wait"),
        "exchanging, in steps": part("exchange"),
        "from start to end": wall_s(fold.timeline),
        "time of all nodes": bill.node_s,
        "money": bill.money,
        "samples": float(fold.used.samples),
    }


def _line(label: str, values: list[float | None], show: Callable[[float], str]) -> Line:
    first = values[0]
    ratios: list[Ratio | None] = [None]
    for value in values[1:]:
        is_known = value is not None and first is not None and first > 0
        ratios.append(Ratio(value=value / first) if is_known else None)  # type: ignore[operator]
    texts = ["-" if value is None else show(value) for value in values]
    return Line(label=label, values=values, shown=texts, ratios=ratios)


def _rates(fold: Fold) -> tuple[Floats, Floats]:
    """Samples per second, and seconds per step, of stretches of the steady part."""
    _, counts, took_s, samples, _ = fold.all_steps()
    skipped = min(MAX_WARM_UP_STEPS, len(took_s) // 4)
    counts, took_s, samples = counts[skipped:], took_s[skipped:], samples[skipped:]
    pieces = min(_STRETCHES, len(took_s))
    if pieces < _FEWEST_STRETCHES:
        return np.zeros(0), np.zeros(0)
    per_piece = [
        (float(n @ s), float(n @ t), float(n.sum()))
        for n, t, s in zip(
            np.array_split(counts, pieces),
            np.array_split(took_s, pieces),
            np.array_split(samples, pieces),
            strict=True,
        )
    ]
    whole = [piece for piece in per_piece if piece[0] > 0 and piece[1] > 0]
    return (
        np.array([used / time_s for used, time_s, _ in whole]),
        np.array([time_s / count for _, time_s, count in whole]),
    )


def _with_intervals(line: Line, rates: Sequence[tuple[Floats, Floats]]) -> Line:
    place = {"samples/s": 0, "a step, on average": 1}.get(line.label)
    if place is None:
        return line
    first = rates[0][place]
    ratios = [
        None if ratio is None else _ratio(ratio, rates[run][place], first)
        for run, ratio in enumerate(line.ratios)
    ]
    return msgspec.structs.replace(line, ratios=ratios)


def _ratio(ratio: Ratio, own: Floats, first: Floats) -> Ratio:
    """The same ratio with its interval, where there is enough to tell it from."""
    if min(len(own), len(first)) < _FEWEST_STRETCHES:
        return ratio
    parts = [float(np.log(one).var(ddof=1)) / len(one) for one in (own, first)]
    error = math.sqrt(sum(parts))
    if error == 0:
        return Ratio(value=ratio.value, low=ratio.value, high=ratio.value)
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(one) - 1) for part, one in zip(parts, (own, first), strict=True)
    )
    reach = (1.96 + 2.4 / freedom) * error  # the quantile of Student's t, to a percent
    return Ratio(
        value=ratio.value, low=ratio.value * math.exp(-reach), high=ratio.value * math.exp(reach)
    )
