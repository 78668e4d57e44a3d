# SPDX-License-Identifier: Apache-2.0
"""Sums per worker and span of time that never take more than their room.

It begins with spans of a millisecond. When a run gets longer than all of them, two neighbours become
one; when there are more workers than rows, neighbours share a row. So a run of any length and size is
folded in one pass, as finely as the room allows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FIRST_WIDTH_S = 1e-3
_FEWEST_BINS = 256


_LONGEST_S = 3.2e9
"""A century: a log that says more is wrong, and the table must not grow with it."""


class Cells:
    """A table of workers by time, with several sums in each cell."""

    def __init__(
        self, channels: int, *, most_cells: int, most_bins: int, most_rows: int = 512
    ) -> None:
        self.width_s = _FIRST_WIDTH_S
        """How long one span is."""
        self.block = 1
        """How many workers share a row."""
        self._most_cells = most_cells
        self._most_rows = most_rows
        self._num_rows = 0
        self._end_s = 0.0
        self._sums = np.zeros((1, most_bins, channels), dtype=np.float32)

    @property
    def sums(self) -> NDArray[np.float32]:
        """By row, span and channel; as far as there is anything."""
        return self._sums[: self._num_rows, : self.num_bins]

    @property
    def num_bins(self) -> int:
        """How many spans of time have something in them, from the first."""
        return (
            min(self._sums.shape[1], int(self._end_s / self.width_s) + 1) if self._num_rows else 0
        )

    def add(
        self, workers: Ints, channels: Ints, begins_s: Floats, ends_s: Floats, amounts: Floats
    ) -> None:
        """Spreads each amount evenly over its time."""
        if not len(workers):
            return
        begins_s, ends_s = np.clip(begins_s, 0.0, _LONGEST_S), np.clip(ends_s, 0.0, _LONGEST_S)
        self._fit(int(workers.max()), float(ends_s.max()))
        low, high = begins_s / self.width_s, ends_s / self.width_s
        last_bin = self._sums.shape[1] - 1
        first = np.minimum(low.astype(np.int64), last_bin)
        last = np.clip(high.astype(np.int64), first, last_bin)
        counts = last - first + 1
        which = np.repeat(np.arange(len(workers)), counts)
        bins = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts) + first[which]
        overlap = np.minimum(high[which], bins + 1) - np.maximum(low[which], bins)
        length = (high - low)[which]
        parts = np.where(length > 0, overlap / np.where(length > 0, length, 1.0), 1.0)
        rows = workers // self.block
        np.add.at(self._sums, (rows[which], bins, channels[which]), amounts[which] * parts)

    def _fit(self, worker: int, end_s: float) -> None:
        while worker // self.block >= self._most_rows:
            self._sums = _paired(self._sums, axis=0)
            self.block *= 2
            self._num_rows = -(-self._num_rows // 2)
        self._num_rows = max(self._num_rows, worker // self.block + 1)
        while self._sums.shape[0] < self._num_rows:
            self._sums = np.concatenate([self._sums, np.zeros_like(self._sums)])
        rows, bins, _ = self._sums.shape
        while rows * bins > self._most_cells and bins > _FEWEST_BINS:
            self._sums = _paired(self._sums, axis=1)
            self.width_s *= 2
            bins //= 2
        while end_s >= self.width_s * bins:
            merged = _paired(self._sums, axis=1)
            self._sums = np.concatenate([merged, np.zeros_like(merged)], axis=1)
            self.width_s *= 2
        self._end_s = max(self._end_s, end_s)


def _paired(sums: NDArray[np.float32], *, axis: int) -> NDArray[np.float32]:
    """Two neighbours become one."""
    if sums.shape[axis] % 2:
        sums = np.concatenate([sums, np.zeros_like(sums.take([0], axis=axis))], axis=axis)
    even = [slice(None)] * 3
    odd = [slice(None)] * 3
    even[axis], odd[axis] = slice(0, None, 2), slice(1, None, 2)
    result: NDArray[np.float32] = sums[tuple(even)] + sums[tuple(odd)]
    return result
