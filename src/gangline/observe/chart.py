# SPDX-License-Identifier: Apache-2.0
"""A small chart for the terminal: how much of its time each worker was busy, and how much not.

n0 (worker 0)  ███████████████████████▒▒░░░░░░░░░░░░░░░   busy 60 %, waiting 35 %
n1 (worker 1)  ██████████████████████████████████████▒▒   busy 95 %, waiting 0 %
               █ busy  ▒ exchanging  ░ waiting  · other
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.observe.summary import RunSummary

_MARKS = {"busy": "█", "exchanging": "▒", "waiting": "░", "other": "·"}
_MAX_LABEL = 24


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the chart; the parts are seconds, or any other unit."""

    label: str
    busy: float
    exchanging: float = 0.0
    waiting: float = 0.0
    other: float = 0.0

    @property
    def parts(self) -> tuple[float, ...]:
        """The parts in the order in which they are drawn."""
        return self.busy, self.exchanging, self.waiting, self.other


def worker_bars(summary: RunSummary) -> list[Bar]:
    """A bar for each worker that has steady steps."""
    return [
        Bar(
            label=f"{one.node} (worker {one.worker})" if one.node else f"worker {one.worker}",
            busy=one.spent.busy_s,
            exchanging=one.spent.exchange_s,
            waiting=one.spent.wait_s,
            other=one.spent.other_s,
        )
        for one in summary.workers
        if one.spent.total_s > 0
    ]


def draw_bars(bars: Sequence[Bar], *, width: int = 40) -> str:
    """The chart as text; the longest bar is `width` wide. Empty where there is nothing to draw."""
    longest = max((sum(bar.parts) for bar in bars), default=0.0)
    if longest <= 0:
        return ""
    indent = max(len(_label(bar)) for bar in bars) + 2
    lines = [_line(bar, longest=longest, indent=indent, width=width) for bar in bars]
    legend = "  ".join(f"{mark} {name}" for name, mark in _MARKS.items())
    return "\n".join([*lines, " " * indent + legend])


def _line(bar: Bar, *, longest: float, indent: int, width: int) -> str:
    counts = _cells([part / longest * width for part in bar.parts])
    drawn = "".join(mark * count for mark, count in zip(_MARKS.values(), counts, strict=True))
    text = _words(bar) if sum(bar.parts) > 0 else ""
    return f"{_label(bar):<{indent}}{drawn:<{width}}  {text}".rstrip()


def _words(bar: Bar) -> str:
    busy, waiting = (100 * part / sum(bar.parts) for part in (bar.busy, bar.waiting))
    return f"busy {busy:.0f} %, waiting {waiting:.0f} %"


def _cells(lengths: Sequence[float]) -> list[int]:
    """Whole cells whose sums are right: each part ends where the rounded sum up to it ends."""
    counts = []
    drawn = 0
    end = 0.0
    for length in lengths:
        end += length
        counts.append(round(end) - drawn)
        drawn = round(end)
    return counts


def _label(bar: Bar) -> str:
    return bar.label if len(bar.label) <= _MAX_LABEL else bar.label[: _MAX_LABEL - 1] + "…"
