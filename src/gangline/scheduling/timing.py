# SPDX-License-Identifier: Apache-2.0
"""What an item of a loop takes: given, or estimated from the chunks that were done.

Of items that take μ on average with the variance σ², a chunk of n takes nμ with the variance nσ². So
from K chunks of nₖ items in tₖ seconds

    μ = Σ tₖ / Σ nₖ        σ² = (Σ tₖ²/nₖ − (Σ tₖ)²/Σ nₖ) / (K − 1)
"""

from __future__ import annotations

import math

import msgspec

from gangline.spec.errors import UsageError


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The time of an item, and of handing out a chunk."""

    mean_s: float
    """μ"""
    sigma_s: float = 0.0
    """σ, the standard deviation between items"""
    overhead_s: float = 0.0
    """h, the time that each chunk costs beside its items"""

    def __post_init__(self) -> None:
        if not (self.mean_s > 0 and self.sigma_s >= 0 and self.overhead_s >= 0):
            raise UsageError(
                f"items that take {self.mean_s} s ± {self.sigma_s} s, chunks that cost "
                f"{self.overhead_s} s: the mean must be above 0, the others not below"
            )

    @property
    def variation(self) -> float:
        """σ/μ"""
        return self.sigma_s / self.mean_s


class TimingEstimate:
    """Learns μ, σ and h from chunks."""

    def __init__(self) -> None:
        self.chunks = 0
        self.items = 0
        self._seconds = 0.0
        self._squares = 0.0
        self._overhead_s = 0.0

    def add(self, size: int, seconds: float, overhead_s: float = 0.0) -> None:
        """A chunk of `size` items was done."""
        if size < 1:
            return
        self.chunks += 1
        self.items += size
        self._seconds += seconds
        self._squares += seconds * seconds / size
        self._overhead_s += overhead_s

    @property
    def timing(self) -> Timing | None:
        """The estimate; None before the first chunk, or where chunks took no time at all."""
        if self._seconds <= 0:
            return None
        spread = self._squares - self._seconds**2 / self.items
        variance = max(spread, 0.0) / (self.chunks - 1) if self.chunks > 1 else 0.0
        return Timing(
            mean_s=self._seconds / self.items,
            sigma_s=math.sqrt(variance),
            overhead_s=self._overhead_s / self.chunks,
        )
