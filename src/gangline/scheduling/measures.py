# SPDX-License-Identifier: Apache-2.0
"""What tells how well a loop was handed out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from gangline.scheduling.timing import TimingEstimate

if TYPE_CHECKING:
    from collections.abc import Sequence


def imbalance(times_s: Sequence[float]) -> float:
    """(T_max − T_mean)/T_max · P/(P − 1): 0 where all end together, 1 where one does everything."""
    count, longest = len(times_s), max(times_s, default=0.0)
    if count < 2 or longest <= 0:
        return 0.0
    return max(0.0, (longest - sum(times_s) / count) / longest * count / (count - 1))


class LoopReport(msgspec.Struct, frozen=True, kw_only=True):
    """A loop, or the part of it that is done, in numbers."""

    items: int
    chunks: int
    steals: int
    time_s: float
    """T_max: what the worker that worked longest took, its overheads included."""
    imbalance: float
    """0 to 1"""
    overhead_share: float
    """Which part of the workers' time went into getting chunks."""
    overhead_s: float
    """h, of one chunk"""
    mean_s: float
    """μ, of one item"""
    variation: float
    """σ/μ between items of one worker"""
    rates: dict[int, float]
    """Items per second of each worker that has done some."""

    @property
    def time_per_item_s(self) -> float:
        """Of the whole loop."""
        return self.time_s / self.items if self.items else 0.0

    @property
    def lost_share(self) -> float:
        """Which part of the workers' time was not spent on items: they waited, or got chunks."""
        count = len(self.rates)
        idle = self.imbalance * (count - 1) / count if count > 1 else 0.0
        return idle + (1 - idle) * self.overhead_share

    @property
    def unlikeness(self) -> float:
        """How many times as fast as the slowest worker the fastest is."""
        return max(self.rates.values()) / min(self.rates.values()) if self.rates else 1.0

    @property
    def doubt(self) -> float:
        """By what part rates differ between like workers, since their items differ: three σ."""
        each = self.items / max(len(self.rates), 1)
        return 3 * self.variation / math.sqrt(each) if each else 0.0

    def numbers(self) -> dict[str, float | None]:
        """What a decision says about it."""
        return {
            "imbalance": self.imbalance,
            "overhead_share": self.overhead_share,
            "overhead_s": self.overhead_s,
            "mean_s": self.mean_s,
            "variation": self.variation,
            "unlikeness": self.unlikeness,
            "chunks": float(self.chunks),
            "steals": float(self.steals),
            "time_s": self.time_s,
        }


class LoopMeter:
    """Adds up what is reported of the chunks of one loop."""

    def __init__(self) -> None:
        self._workers: dict[int, TimingEstimate] = {}
        self._spent_s: dict[int, float] = {}
        self._overhead_s = 0.0
        self.chunks = 0
        self._steals = 0

    @property
    def workers(self) -> int:
        """How many have done a chunk."""
        return len(self._workers)

    def add(
        self, worker: int, size: int, seconds: float, *, overhead_s: float, is_stolen: bool
    ) -> None:
        """`worker` has done a chunk."""
        self._workers.setdefault(worker, TimingEstimate()).add(size, seconds, overhead_s)
        self._spent_s[worker] = self._spent_s.get(worker, 0.0) + seconds + overhead_s
        self._overhead_s += overhead_s
        self.chunks += 1
        self._steals += is_stolen

    def report(self, *, workers: int) -> LoopReport:
        """All so far; of `workers` those that have done nothing were idle."""
        timings = {who: one.timing for who, one in self._workers.items()}
        known = {who: one for who, one in timings.items() if one is not None}
        items = sum(one.items for one in self._workers.values())
        spent_s = sum(self._spent_s.values())
        busy_s = spent_s - self._overhead_s
        idle = [0.0] * (workers - len(self._spent_s))
        seen = sum(self._workers[who].items for who in known)
        squares = sum(one.variation**2 * self._workers[who].items for who, one in known.items())
        return LoopReport(
            items=items,
            chunks=self.chunks,
            steals=self._steals,
            time_s=max(self._spent_s.values(), default=0.0),
            imbalance=imbalance([*self._spent_s.values(), *idle]),
            overhead_share=self._overhead_s / spent_s if spent_s > 0 else 0.0,
            overhead_s=self._overhead_s / self.chunks if self.chunks else 0.0,
            mean_s=busy_s / items if items else 0.0,
            variation=math.sqrt(squares / seen) if seen else 0.0,
            rates={who: 1 / one.mean_s for who, one in sorted(known.items())},
        )
