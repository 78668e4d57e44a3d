# SPDX-License-Identifier: Apache-2.0
"""Schemes for workers that are not alike: each gets chunks in proportion to its speed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gangline.scheduling.schemes import formulas
from gangline.scheduling.schemes.formulas import round_up
from gangline.scheduling.speeds import Speeds
from gangline.scheduling.timing import TimingEstimate

if TYPE_CHECKING:
    from gangline.scheduling.chunks import Loop
    from gangline.scheduling.timing import Timing

LEAST_REPORTS = 3
"""AF goes by a worker's own variance after as many chunks."""
MAX_START = 100
"""The largest of the chunks before that."""


def _weight_given(loop: Loop, worker: int) -> float:
    return loop.weights[worker] if worker < len(loop.weights) else 1.0


class WeightedFactoring:
    """WF2: ⌈wᵢ·FAC2⌉ with the weights that are given (Hummel et al., 1996).

    AWF is the same with weights that are learnt from loop to loop (Banicescu et al., 2003): what
    is reported counts when the next loop begins, which must be made with the same `speeds`.
    """

    def __init__(self, loop: Loop, *, learns: bool = False) -> None:
        self._loop = loop
        self._factoring = formulas.factoring2(loop)
        self._count = 0
        self._speeds = (loop.speeds or Speeds()) if learns else None
        if self._speeds is not None:
            self._speeds.end_loop()

    def next_size(self, worker: int, remaining: int) -> int:
        """In proportion to the worker's weight."""
        size = round_up(self._factoring(self._count, remaining))
        self._count += 1
        weight = _weight_given(self._loop, worker)
        if self._speeds is not None:
            weight = self._speeds.weight(worker, weight)
        return round_up(weight * size)

    def finished(self, worker: int, size: int, seconds: float, overhead_s: float = 0.0) -> None:
        """Noted for the next loop."""
        if self._speeds is not None:
            self._speeds.note(worker, size, seconds)


class AdaptiveWeighted:
    """AWF-B, -C, -D and -E (Cariño and Banicescu, 2008): the weights change within the loop.

    B and D: batches of P chunks of ⌈R/xP⌉, with the weights of when the batch began.
    C and E: each chunk is ⌈R/xP⌉ by itself, with the weights of now.
    D and E count the overhead as part of the time of a chunk. In the papers x = 2; with a larger one
    chunks are smaller, so that less hangs on a weight that was learnt from cheaper items.
    """

    def __init__(self, loop: Loop, *, by_batch: bool, with_overhead: bool, x: float = 2.0) -> None:
        self._cut = x * loop.workers
        self._loop = loop
        self._by_batch = by_batch
        self._with_overhead = with_overhead
        self._speeds = loop.speeds or Speeds()
        self._count = 0
        self._size = 1
        self._weights: dict[int, float] = {}

    def next_size(self, worker: int, remaining: int) -> int:
        """In proportion to the worker's weight."""
        if not self._by_batch or self._count % self._loop.workers == 0:
            self._size = math.ceil(remaining / self._cut)
            self._weights.clear()
            if self._by_batch:
                known = {*range(self._loop.workers), *self._speeds.workers}
                self._weights = {one: self._weight(one) for one in known}
        self._count += 1
        return round_up(self._weights.get(worker, self._weight(worker)) * self._size)

    def finished(self, worker: int, size: int, seconds: float, overhead_s: float = 0.0) -> None:
        """The worker's weight is known better."""
        self._speeds.report(worker, size, seconds + (overhead_s if self._with_overhead else 0.0))

    def _weight(self, worker: int) -> float:
        return self._speeds.weight(worker, _weight_given(self._loop, worker))


class AdaptiveFactoring:
    """AF (Banicescu and Liu, 2000): from each worker's own μᵢ and σᵢ, estimated from its chunks.

        D = Σⱼ σⱼ²/μⱼ    T = 1/Σⱼ 1/μⱼ    cᵢ = (D + 2TR − √(D² + 4DTR)) / (2μᵢ)

    A worker begins with small chunks, ⌈N/16P⌉ and 100 at most, until it has done three of them.
    In place of who has not got that far, its own numbers are used.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._start = min(MAX_START, math.ceil(loop.total / (16 * loop.workers)))
        self._estimates: dict[int, TimingEstimate] = {}

    def next_size(self, worker: int, remaining: int) -> int:
        """Such that all would end together, less what their variance makes doubtful."""
        own = self._timing(worker)
        if own is None:
            return self._start
        timings = [self._timing(other) or own for other in range(self._loop.workers)]
        d = sum(one.sigma_s**2 / one.mean_s for one in timings)
        both = 1 / sum(1 / one.mean_s for one in timings) * remaining
        return round_up((d + 2 * both - math.sqrt(d * d + 4 * d * both)) / (2 * own.mean_s))

    def finished(self, worker: int, size: int, seconds: float, overhead_s: float = 0.0) -> None:
        """The worker's own numbers get better."""
        self._estimates.setdefault(worker, TimingEstimate()).add(size, seconds)

    def _timing(self, worker: int) -> Timing | None:
        estimate = self._estimates.get(worker)
        if estimate is None or estimate.chunks < LEAST_REPORTS:
            return None
        return estimate.timing
