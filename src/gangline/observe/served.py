# SPDX-License-Identifier: Apache-2.0
"""What parameter servers did in a run: how stale updates were, what was dropped, who holds what."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from typing import TYPE_CHECKING

from gangline.observe.report import counted, percent, seconds
from gangline.observe.summary import ServedSummary
from gangline.spec.event import Decision, ServersUsed, UpdateApplied, UpdateVoided

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gangline.spec.event import AnyEvent

_MOST_BINS = 8
_HELD_BY = "the parameters are held by: "


class ServedTally:
    """Counts as events come."""

    def __init__(self) -> None:
        self.turns_s: dict[int, float] = {}
        """By worker, how long it waited for turns."""
        self.holders = ""
        """Who holds which shard, as decided last."""
        self._numbers = array("q")
        self._staleness = array("q")
        self._dropped = [0, 0]
        self._lost = [0, 0]
        self._moved = [0, 0, 0, 0]

    def add(self, event: AnyEvent) -> None:
        """The next event, in the order of time."""
        match event:
            case UpdateApplied():
                # Told once more after a restart, or another one in the place of what was lost.
                while self._numbers and self._numbers[-1] >= event.number:
                    self._numbers.pop()
                    self._staleness.pop()
                self._numbers.append(event.number)
                self._staleness.append(event.staleness)
            case UpdateVoided():
                counts = self._lost if event.clock < 0 else self._dropped
                counts[0] += 1
                counts[1] += event.stop - event.start
            case ServersUsed():
                told = (
                    event.pushed_bytes,
                    event.pulled_bytes,
                    event.num_pulls,
                    event.num_fetches,
                )
                self._moved = [sum(pair) for pair in zip(self._moved, told, strict=True)]
            case Decision(what="place_shards"):
                self.holders = event.reason.removeprefix(_HELD_BY)

    def wait(self, workers: Iterable[int], turn_s: float) -> None:
        """A team's members waited so long for their turn."""
        for worker in workers:
            self.turns_s[worker] = self.turns_s.get(worker, 0.0) + turn_s

    def summary(self) -> ServedSummary | None:
        """What is known so far; None where there are no servers."""
        if not self._numbers:
            return None
        ordered = sorted(self._staleness)
        return ServedSummary(
            num_updates=len(ordered),
            staleness=dict(sorted(Counter(ordered).items())),
            staleness_median=_at(ordered, 0.5),
            staleness_p90=_at(ordered, 0.9),
            staleness_most=ordered[-1],
            num_dropped=self._dropped[0],
            dropped_samples=self._dropped[1],
            num_lost=self._lost[0],
            lost_samples=self._lost[1],
            holders=self.holders,
            turn_s=float(sum(self.turns_s.values())),
            pushed_bytes=self._moved[0],
            pulled_bytes=self._moved[1],
            num_pulls=self._moved[2],
            num_fetches=self._moved[3],
        )


def _at(ordered: Sequence[int], fraction: float) -> int:
    """The least value that this part of them is not above."""
    return ordered[math.ceil(len(ordered) * fraction) - 1]


def served_lines(served: ServedSummary | None) -> list[str]:
    """The servers' part of the report; nothing where there are none."""
    if served is None:
        return []
    total = served.num_updates
    lines = [
        f"parameter servers: {counted(total, 'update', 'updates')}, staleness "
        f"{served.staleness_median} (median), {served.staleness_p90} (90 %), "
        f"{served.staleness_most} (most)",
        "staleness: "
        + ", ".join(f"{at} in {percent(part)}" for at, part in staleness_bins(served.staleness)),
    ]
    voids = (
        ("dropped because they were late", served.num_dropped, served.dropped_samples),
        ("lost with a server", served.num_lost, served.lost_samples),
    )
    lines += [
        f"{why}: {counted(count, 'update', 'updates')} "
        f"({counted(samples, 'sample', 'samples')}, computed again)"
        for why, count, samples in voids
        if count
    ]
    lines.append(f"waited for turns: {seconds(served.turn_s)}, all workers together")
    if served.num_pulls:
        fetches = f" and {counted(served.num_fetches, 'fetch', 'fetches')} of rows"
        lines.append(
            f"moved between workers: {_megabytes(served.pushed_bytes)} pushed, "
            f"{_megabytes(served.pulled_bytes)} pulled in "
            f"{counted(served.num_pulls, 'pull', 'pulls')}{fetches if served.num_fetches else ''}"
        )
    return [*lines, f"held by: {served.holders}"] if served.holders else lines


def _megabytes(count: int) -> str:
    value = count / 1e6
    return f"{value:,.0f} MB" if value >= 1000 else f"{value:.3g} MB"


def staleness_bins(counts: Mapping[int, int]) -> list[tuple[str, float]]:
    """What part of the updates was how stale: each value, or, of many values, ranges that double."""
    found: dict[str, int] = {}
    for value, count in sorted(counts.items()):
        low = 1 << (value.bit_length() - 1) if value > 0 else 0
        is_range = len(counts) > _MOST_BINS and low > 1
        name = f"{low} to {2 * low - 1}" if is_range else str(value)
        found[name] = found.get(name, 0) + count
    return [(name, count / sum(counts.values())) for name, count in found.items()]
