# SPDX-License-Identifier: Apache-2.0
"""The published abnormal detection: a step's time against an average of the worker's own steps.

    abnormal  where  |time − average| > threshold,  then the average is updated

The text names two averages, and so there are two detectors: over all steps so far, and over a limited
window of the last ones. It gives no threshold, and a time in seconds fits one job only, so here it is
a fraction of the average. Three things are as published, and make these two worse than `robust`:

- the absolute value: a worker that got faster is abnormal, too;
- abnormal steps enter the average, which thus follows whoever stays slow: the verdict fades;
- a single step decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import msgspec
import numpy as np

from gangline.control.detection.protocol import Verdicts
from gangline.planning.allocation.bounds import Floats, Shares

if TYPE_CHECKING:
    from numpy.typing import NDArray

THRESHOLD = 0.5
"""How far a step may be from the average, as a fraction of it."""
WIDTH = 16
"""Steps in the limited window."""
_NOBODY = np.zeros(0)


def _judge(values: Floats, average: Floats) -> Verdicts:
    measured = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        slow = measured & (np.abs(values - average) > THRESHOLD * average)
    return Verdicts(slow=slow, measured=values, usual=average)


class AverageDetector(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """`paper-average`: against the running average of all steps."""

    count: Floats = _NOBODY
    mean: Floats = _NOBODY

    def observe(self, values: Floats) -> tuple[Self, Verdicts]:
        """One step: the verdicts by the average so far, and the average with it."""
        verdicts = _judge(values, np.where(self.count > 0, self.mean, np.nan))
        measured = np.isfinite(values)
        count = self.count + measured
        step = np.where(measured, values - self.mean, 0.0) / np.maximum(count, 1)
        return msgspec.structs.replace(self, count=count, mean=self.mean + step), verdicts

    def joined(self, count: int) -> Self:
        """With so many more workers."""
        nothing = np.zeros(count)
        return msgspec.structs.replace(
            self,
            count=np.concatenate((self.count, nothing)),
            mean=np.concatenate((self.mean, nothing)),
        )

    def selected(self, places: Shares) -> Self:
        """Of some of the workers."""
        return msgspec.structs.replace(self, count=self.count[places], mean=self.mean[places])


class WindowDetector(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """`paper-window`: against the average of the last `WIDTH` steps."""

    window: Floats = np.zeros((WIDTH, 0))
    """The last steps of each worker, the newest last; NaN before its first."""

    def observe(self, values: Floats) -> tuple[Self, Verdicts]:
        """One step: the verdicts by the window so far, and the window with it."""
        known: NDArray[np.bool_] = np.isfinite(self.window)
        count = known.sum(axis=0)
        total = np.where(known, self.window, 0.0).sum(axis=0)
        average = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        moved = np.concatenate((self.window[1:], values[None]))
        window = np.where(np.isfinite(values), moved, self.window)
        return msgspec.structs.replace(self, window=window), _judge(values, average)

    def joined(self, count: int) -> Self:
        """With so many more workers."""
        nothing = np.full((WIDTH, count), np.nan)
        return msgspec.structs.replace(self, window=np.concatenate((self.window, nothing), axis=1))

    def selected(self, places: Shares) -> Self:
        """Of some of the workers."""
        return msgspec.structs.replace(self, window=self.window[:, places])
