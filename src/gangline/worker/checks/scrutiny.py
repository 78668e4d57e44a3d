# SPDX-License-Identifier: Apache-2.0
"""Whose gradient is wrong: not finite, or wildly larger than everything it can be compared with.

Every member states how large its own part of the gradient is, in the header, and all of them judge
the same numbers by the same rule, so that they agree on who is wrong without asking. A gradient is
too large if it is more than `FACTOR` times as large as the others' of the same pass (their median),
and as the largest that any member had lately. Both are needed: where a training diverges, everybody's
grows at once; where most samples are learnt, one that is not has a gradient that dwarfs the others'.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median_low
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

FACTOR = 1024.0
"""So many times as large as all that is usual is too large."""
NOT_FINITE = 1 << 40
"""The size of a gradient that is infinite or not a number, or whose square is."""
UNSAID = 0
"""The size of a gradient that is zero, or that cannot be told from what was there before."""

_WINDOW = 64
"""For so many backward passes it is remembered how large gradients were."""
_STEPS_PER_DOUBLING = 8
_ZERO_POINT = 2048 * _STEPS_PER_DOUBLING
_FACTOR_STEPS = round(math.log2(FACTOR)) * _STEPS_PER_DOUBLING


def size_of(square: float, part: float) -> int:
    """A gradient's size as a whole number that a header can carry: a logarithm of its norm.

    `square` is the sum of the squares of a worker's weighted gradient, `part` its part of the
    batch: divided by it, gradients of unlike shares can be compared.
    """
    if not math.isfinite(square):
        return NOT_FINITE
    if square <= 0 or part <= 0:
        return UNSAID
    doublings = math.log2(square) / 2 - math.log2(part)
    return max(1, _ZERO_POINT + round(doublings * _STEPS_PER_DOUBLING))


def norm_of(size: int) -> float:
    """The norm that a finite size stands for, to a few percent."""
    return float(2.0 ** ((size - _ZERO_POINT) / _STEPS_PER_DOUBLING))


class Wrong(NamedTuple):
    """A member whose gradient is wrong."""

    rank: int
    norm: float
    """Of its gradient, as a mean over its own samples; infinite where it is not finite."""
    usual: float
    """The largest norm that it was compared with; 0 where nothing needed to be compared."""

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.norm)


class Scrutiny:
    """Judges the sizes that the members state, and remembers what was usual."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=_WINDOW)

    @property
    def usual(self) -> int:
        """The largest size of late that was not wrong; `UNSAID` for who has seen none."""
        return max(self._recent, default=UNSAID)

    def judge(self, sizes: Sequence[int], *, usual: int) -> list[Wrong]:
        """Who is wrong, by rank. `usual` is the greatest that any member has seen lately."""
        suspects = [rank for rank, size in enumerate(sizes) if size - usual > _FACTOR_STEPS]
        judged = [_compare(rank, sizes, usual) for rank in suspects]
        wrong = [one for one in judged if one is not None]
        ranks = {one.rank for one in wrong}
        largest = max((s for rank, s in enumerate(sizes) if rank not in ranks), default=UNSAID)
        if largest > UNSAID:
            self._recent.append(largest)
        return wrong


def _compare(rank: int, sizes: Sequence[int], usual: int) -> Wrong | None:
    if sizes[rank] == NOT_FINITE:
        return Wrong(rank, math.inf, 0.0)
    others = [s for i, s in enumerate(sizes) if i != rank and UNSAID < s < NOT_FINITE]
    if not others:
        return None
    bound = max(median_low(others), usual)
    is_too_large = sizes[rank] - bound > _FACTOR_STEPS
    return Wrong(rank, norm_of(sizes[rank]), norm_of(bound)) if is_too_large else None
