# SPDX-License-Identifier: Apache-2.0
"""Orders of magnitude without fixed edges: numbers that differ by less than a factor belong together.

Binning by `floor(log10 x)` tells 9.9 from 10.1 and not 10.1 from 99. Here classes are cut where the
sorted logarithms leave a gap: noise well below the gap moves no number into another class, the number
of classes follows from the numbers, and scaling all of them changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

FACTOR = 3.0
"""Neighbours further apart than this are of different magnitude: about half a decade, far above the
13 to 30 % by which measurements vary, and below the tenfold that separates kinds of machines."""


def magnitude_classes(values: ArrayLike, *, factor: float = FACTOR) -> NDArray[np.int64]:
    """The class of each value (all above 0), counted from 0 for the least."""
    logs = np.log(np.asarray(values, dtype=np.float64))
    if not logs.size:
        return np.zeros(0, dtype=np.int64)
    order = np.argsort(logs, kind="stable")
    classes = np.empty(logs.size, dtype=np.int64)
    # A hair of tolerance: numbers exactly one factor apart must not be torn apart by rounding.
    gaps = np.diff(logs[order]) > np.log(factor) + 1e-9
    classes[order] = np.concatenate(([0], np.cumsum(gaps)))
    return classes
