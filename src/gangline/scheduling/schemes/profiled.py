# SPDX-License-Identifier: Apache-2.0
"""Schemes that go by the mean μ, the deviation σ and the overhead h of what is to be done.

These are given with the scheme (`FAC(mean=0.01,sigma=0.02)`), known to the loop (`Loop.timing`), or
estimated while it runs: until P chunks are done, and a batch of P ends, chunks are those of FAC2.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gangline.scheduling.schemes import formulas
from gangline.scheduling.schemes.formulas import round_up
from gangline.scheduling.timing import Timing, TimingEstimate

if TYPE_CHECKING:
    from gangline.scheduling.chunks import Loop


class Profiled:
    """What they share: where μ, σ and h come from."""

    def __init__(
        self, loop: Loop, *, mean: float = 0.0, sigma: float = 0.0, overhead: float = 0.0
    ) -> None:
        self.loop = loop
        self._given = (
            Timing(mean_s=mean, sigma_s=sigma, overhead_s=overhead) if mean else loop.timing
        )
        self._estimate = TimingEstimate()
        self._is_known = self._given is not None
        self._before = formulas.factoring2(loop)
        self._count = 0

    def next_size(self, worker: int, remaining: int) -> int:
        """By the timing, as far as it is known."""
        number, self._count = self._count, self._count + 1
        if not self._is_known and number % self.loop.workers == 0:
            self._is_known = self._estimate.chunks >= self.loop.workers
        timing = self._given or (self._estimate.timing if self._is_known else None)
        if timing is None:
            return round_up(self._before(number, remaining))
        return round_up(self.size(timing, number, worker, remaining))

    def size(self, timing: Timing, number: int, worker: int, remaining: int) -> float:
        """Chunk `number` of the loop, by this timing."""
        raise NotImplementedError

    def finished(self, worker: int, size: int, seconds: float, overhead_s: float = 0.0) -> None:
        """The estimate gets better."""
        self._estimate.add(size, seconds, overhead_s)


class FixedSize(Profiled):
    """FSC: (√2·N·h / (σ·P·√ln P))^⅔ (Kruskal and Weiss, 1985).

    With one worker, or items that all take the same, there is nothing to even out: ⌈N/P⌉.
    """

    _size: float | None = None

    def size(self, timing: Timing, number: int, worker: int, remaining: int) -> float:
        """The same for all chunks from when the timing is known; N is what remains then."""
        if self._size is None:
            workers = self.loop.workers
            spread = timing.sigma_s * workers * math.sqrt(math.log(workers))
            work = math.sqrt(2) * remaining * timing.overhead_s
            self._size = math.pow(work / spread, 2 / 3) if spread else remaining / workers
        return min(self._size, remaining)


class Factoring(Profiled):
    """FAC: batches of P chunks of R/(x·P) (Hummel, Schonberg and Flynn, 1992).

    b = P·σ/(2μ√R); x = 1 + b² + b√(b² + 2) for the first batch, 2 + b² + b√(b² + 4) for others.
    """

    _size = 1.0

    def size(self, timing: Timing, number: int, worker: int, remaining: int) -> float:
        """It changes with every batch."""
        workers = self.loop.workers
        if number % workers == 0:
            b = workers * timing.variation / (2 * math.sqrt(remaining))
            least = 1 if number == 0 else 2
            x = least + b * b + b * math.sqrt(b * b + 2 * least)
            self._size = remaining / (x * workers)
        return self._size


class Tapering(Profiled):
    """TAP: x + v²/2 − v√(2x + v²/4), v = α·σ/μ, x = R/P (Lucco, 1992). Guided, where σ = 0."""

    def __init__(
        self,
        loop: Loop,
        *,
        alpha: float = 1.3,
        mean: float = 0.0,
        sigma: float = 0.0,
        overhead: float = 0.0,
    ) -> None:
        super().__init__(loop, mean=mean, sigma=sigma, overhead=overhead)
        self._alpha = alpha

    def size(self, timing: Timing, number: int, worker: int, remaining: int) -> float:
        """The larger the variance, the smaller."""
        v, x = self._alpha * timing.variation, remaining / self.loop.workers
        return x + v * v / 2 - v * math.sqrt(2 * x + v * v / 4)


class Bold(Profiled):
    """BOLD (Hagerup, 1997): bolder than factoring, since it knows how much is still under way.

    It needs the time that passed between two requests. Workers of a loop that have work do not
    wait, so a worker's time is what it has reported, overhead included, and the latest is now.
    """

    def __init__(
        self, loop: Loop, *, mean: float = 0.0, sigma: float = 0.0, overhead: float = 0.0
    ) -> None:
        super().__init__(loop, mean=mean, sigma=sigma, overhead=overhead)
        self._clock: dict[int, float] = {}
        self._now = 0.0
        self._unfinished = loop.total
        """m"""
        self._estimated = float(loop.total)
        """n"""
        self._rates: dict[int, float] = {}
        """Of who has a chunk: size/(size·μ + h)."""

    def size(self, timing: Timing, number: int, worker: int, remaining: int) -> float:
        """Less than its part of what remains, by what may go wrong with it."""
        if not self._rates and self._now == 0:
            self._estimated = float(self._unfinished)
        self._catch_up(worker)
        size = min(max(1, math.ceil(self._bold(timing, remaining))), remaining)
        self._rates[worker] = size / (size * timing.mean_s + timing.overhead_s)
        return size

    def finished(self, worker: int, size: int, seconds: float, overhead_s: float = 0.0) -> None:
        """Time has passed, and less is under way."""
        super().finished(worker, size, seconds, overhead_s)
        self._unfinished = max(self._unfinished - size, 0)
        self._clock[worker] = self._clock.get(worker, 0.0) + seconds + overhead_s

    def _catch_up(self, worker: int) -> None:
        now = max(self._now, self._clock.get(worker, 0.0))
        self._estimated -= (now - self._now) * sum(self._rates.values())
        self._now = now
        self._rates.pop(worker, None)

    def _bold(self, timing: Timing, remaining: int) -> float:
        workers = self.loop.workers
        q = remaining / workers
        if q <= 1 or timing.overhead_s == 0:
            return 1
        a = 2 * timing.variation**2
        beta = 8 * a * math.log(8 * a) if a > 0 else 0.0
        c1 = timing.overhead_s / (timing.mean_s * math.log(2))
        c2 = math.sqrt(2 * math.pi) * c1
        r = max(remaining, self._estimated)
        t = r / workers
        v = q / (beta + q)
        d = remaining / (1 + 1 / math.log(q) - v)
        if d <= c2:
            return t
        s = a * (math.log(d) - math.log(c2)) * (1 + self._unfinished / (r * workers))
        w = math.log(v * math.log(q)) + math.log(beta) if beta > 0 else math.log(math.log(q))
        return min(t, t + max(0.0, c1 * w) + s / 2 - math.sqrt(s * (t + s / 4)))
