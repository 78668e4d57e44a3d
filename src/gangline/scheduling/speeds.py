# SPDX-License-Identifier: Apache-2.0
"""How fast the workers are beside each other, learnt from what they did (adaptive weighted factoring).

With n items in t seconds as a worker's k-th report, of which later ones count more,

    πᵢ = Σₖ k·tₖ / Σₖ k·nₖ          wᵢ = p′·(1/πᵢ) / Σⱼ 1/πⱼ

over the p′ workers that have reported, so that their weights sum to p′.
"""

from __future__ import annotations

from collections import defaultdict

_LEAST_S = 1e-12
"""An item takes at least this long: what a clock shows as 0 is no infinite speed."""


class Speeds:
    """The workers' weights. It may be shared by the loops of one program, one after the other."""

    def __init__(self) -> None:
        self._reports: defaultdict[int, int] = defaultdict(int)
        self._seconds: defaultdict[int, float] = defaultdict(float)
        self._items: defaultdict[int, float] = defaultdict(float)
        self._rates: dict[int, float] = {}
        self._sum = 0.0
        self._present: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])

    @property
    def workers(self) -> frozenset[int]:
        """Who has reported."""
        return frozenset(self._rates)

    def report(self, worker: int, size: float, seconds: float) -> None:
        """`worker` has done `size` items in `seconds`; this counts more than what it did before."""
        if size <= 0:
            return
        self._reports[worker] += 1
        k = self._reports[worker]
        self._seconds[worker] += k * seconds
        self._items[worker] += k * size
        self._sum -= self._rates.get(worker, 0.0)
        self._rates[worker] = self._items[worker] / max(
            self._seconds[worker], _LEAST_S * self._items[worker]
        )
        self._sum += self._rates[worker]

    def note(self, worker: int, size: float, seconds: float) -> None:
        """The same, but it counts only when the loop is over, all of the loop as one report."""
        present = self._present[worker]
        present[0] += size
        present[1] += seconds

    def end_loop(self) -> None:
        """What was noted counts from now on."""
        for worker, (size, seconds) in sorted(self._present.items()):
            self.report(worker, size, seconds)
        self._present.clear()

    def rate(self, worker: int) -> float | None:
        """Items per second; None of who has not reported."""
        return self._rates.get(worker)

    def weight(self, worker: int, default: float = 1.0) -> float:
        """wᵢ; `default` for who has not reported yet."""
        rate = self._rates.get(worker)
        return default if rate is None else rate * len(self._rates) / self._sum

    def forget(self, worker: int) -> None:
        """The worker is gone, or is another one now."""
        self._sum -= self._rates.pop(worker, 0.0)
        for kept in (self._reports, self._seconds, self._items, self._present):
            kept.pop(worker, None)
