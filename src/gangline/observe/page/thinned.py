# SPDX-License-Identifier: Apache-2.0
"""A series of rows that keeps its length: when it is full, two neighbours become one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Thinned:
    """Rows of numbers, each with a moment and a weight; neighbours become their weighted mean."""

    def __init__(self, columns: int, *, most: int) -> None:
        self._most = most
        self._per_row = 1
        """How many rows that were added make one that is kept."""
        self._added = 0
        self._rows: list[list[float]] = []
        self._columns = columns

    def add(self, t: float, values: list[float], *, weight: float = 1.0) -> None:
        """A row; the moment of several together is that of the last."""
        if self._added % self._per_row == 0:
            if len(self._rows) == self._most:
                self._thin()
            self._rows.append([t, 0.0, *[0.0] * self._columns])
        self._added += 1
        row = self._rows[-1]
        _merge(row, [t, weight, *values])

    def columns(self) -> NDArray[np.float64]:
        """The moments, the weights, then the means, each as one row."""
        return np.array(self._rows, dtype=np.float64).reshape(-1, self._columns + 2).T

    def _thin(self) -> None:
        pairs = zip(self._rows[::2], self._rows[1::2], strict=False)
        kept = []
        for first, second in pairs:
            _merge(first, second)
            kept.append(first)
        self._rows = kept
        self._per_row *= 2


def _merge(row: list[float], other: list[float]) -> None:
    """Takes another row into this one."""
    total = row[1] + other[1]
    part = other[1] / total if total > 0 else 1.0
    for place in range(2, len(row)):
        row[place] += (other[place] - row[place]) * part
    row[0], row[1] = other[0], total
