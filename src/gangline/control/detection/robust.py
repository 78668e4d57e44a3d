# SPDX-License-Identifier: Apache-2.0
"""The default detector: medians of logarithms, and two limits instead of one.

A worker's recent level is the median of its last `RECENT` steps, its usual level the median of the last
`REFERENCE` ones that were not slow, its spread σ the median distance from that one (scaled to the
standard deviation of a normal distribution). All in logarithms, since steps are late by factors.

    slow        where  recent − usual > max(log 1.5, 3σ)
    recovered   where  recent − usual < max(log 1.2, 1.5σ)

- Medians: fewer than half of the recent steps, however long, mean nothing. A median of five steps
  that vary by σ varies by 0.54σ: the limit is five and a half times that.
- Two limits: a worker between them stays what it was, so that verdicts do not flicker.
- What is slow teaches nothing about the usual: who stays slow is slow until it recovers.
- Only slower is slow. Who gets faster moves its own usual level, within `REFERENCE` steps.
"""

from __future__ import annotations

import math
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from gangline.control.detection.protocol import Verdicts
from gangline.planning.allocation.bounds import Floats, Shares

RECENT = 5
REFERENCE = 32
LEAST_KNOWN = 8
"""Steps of a worker before it is judged."""
REFRESH = 16
"""Observed steps between two looks at what is usual: it does not change fast."""
SLOW, SLOW_SPREADS = math.log(1.5), 3.0
WELL, WELL_SPREADS = math.log(1.2), 1.5
LEAST_SPREAD = 0.02
_NOBODY = np.zeros(0)
_TO_SIGMA = 1.4826
"""The standard deviation of normal numbers, by their median distance from the median."""


class RobustDetector(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """`robust`: the last few steps against what was usual before, by medians."""

    recent: tuple[Floats, ...] = (_NOBODY,) * RECENT
    """log of the last steps, the newest last; NaN before a worker's first."""
    reference: tuple[Floats, ...] = (_NOBODY,) * REFERENCE
    """log of the last steps that were not slow, and are no longer recent."""
    observed: Shares = np.zeros(0, dtype=np.int64)
    level: Floats = _NOBODY
    """The usual level; NaN while it is not known."""
    spread: Floats = _NOBODY
    """σ"""
    slow: NDArray[np.bool_] = np.zeros(0, dtype=bool)

    def observe(self, values: Floats) -> tuple[Self, Verdicts]:
        """One step: the last few against the usual."""
        with np.errstate(invalid="ignore"):
            measured = values > 0
        logs = np.log(np.where(measured, values, 1.0))
        oldest = self.recent[0]
        # What leaves the recent steps was not slow then: now it is part of what is usual.
        learns = measured & ~self.slow & np.isfinite(oldest)
        after = msgspec.structs.replace(
            self,
            recent=_pushed(self.recent, logs, measured),
            reference=_pushed(self.reference, oldest, learns),
            observed=self.observed + measured,
        )
        return after._refreshed(measured)._judged(measured)

    def _judged(self, measured: NDArray[np.bool_]) -> tuple[Self, Verdicts]:
        now = _median_of_five(*self.recent)
        with np.errstate(invalid="ignore"):
            excess = now - self.level
            is_beyond = excess > np.maximum(SLOW, SLOW_SPREADS * self.spread)
            is_well = excess < np.maximum(WELL, WELL_SPREADS * self.spread)
        slow = np.where(measured, (self.slow & ~is_well) | is_beyond, self.slow)
        after = msgspec.structs.replace(self, slow=slow)
        return after, Verdicts(slow=slow, measured=np.exp(now), usual=np.exp(self.level))

    def _refreshed(self, measured: NDArray[np.bool_]) -> Self:
        """With the usual level looked up anew, for whom it is time."""
        is_time = (self.observed % REFRESH == 0) | (self.observed == LEAST_KNOWN)
        due = np.flatnonzero(measured & is_time & ~self.slow)
        if not len(due):
            return self
        steps = np.stack([row[due] for row in (*self.reference, *self.recent)], axis=1)
        level = _median(steps)
        spread = _TO_SIGMA * _median(np.abs(steps - level[:, None]))
        new_level, new_spread = self.level.copy(), self.spread.copy()
        new_level[due], new_spread[due] = level, np.maximum(spread, LEAST_SPREAD)
        return msgspec.structs.replace(self, level=new_level, spread=new_spread)

    def joined(self, count: int) -> Self:
        """With so many more workers."""
        unknown = np.full(count, np.nan)
        return msgspec.structs.replace(
            self,
            recent=tuple(np.append(row, unknown) for row in self.recent),
            reference=tuple(np.append(row, unknown) for row in self.reference),
            observed=np.append(self.observed, np.zeros(count, dtype=np.int64)),
            level=np.append(self.level, unknown),
            spread=np.append(self.spread, np.full(count, LEAST_SPREAD)),
            slow=np.append(self.slow, np.zeros(count, dtype=bool)),
        )

    def selected(self, places: Shares) -> Self:
        """Of some of the workers."""
        return msgspec.structs.replace(
            self,
            recent=tuple(row[places] for row in self.recent),
            reference=tuple(row[places] for row in self.reference),
            observed=self.observed[places],
            level=self.level[places],
            spread=self.spread[places],
            slow=self.slow[places],
        )


def _pushed(
    window: tuple[Floats, ...], newest: Floats, where: NDArray[np.bool_]
) -> tuple[Floats, ...]:
    """The window moved on by one, for the workers `where`."""
    moved = (*window[1:], newest)
    if where.all():
        return moved
    if not where.any():
        return window
    return tuple(np.where(where, new, old) for new, old in zip(moved, window, strict=True))


def _median_of_five(a: Floats, b: Floats, c: Floats, d: Floats, e: Floats) -> Floats:
    """By comparisons of whole rows, which is faster than sorting; NaN where one is missing."""
    low, high = (
        np.maximum(np.minimum(a, b), np.minimum(c, d)),
        np.minimum(np.maximum(a, b), np.maximum(c, d)),
    )
    # Of five, the median is that of the fifth and the middle two of the others.
    median: Floats = np.maximum(np.minimum(low, high), np.minimum(np.maximum(low, high), e))
    return median


def _median(steps: Floats) -> Floats:
    """The (lower) median of each row, NaN left out; every row has a number."""
    ranked = np.sort(steps, axis=1)  # NaN come last
    middle = (np.isfinite(steps).sum(axis=1) - 1) // 2
    medians: Floats = np.take_along_axis(ranked, middle[:, None], axis=1)[:, 0]
    return medians
