# SPDX-License-Identifier: Apache-2.0
"""The ranks of members by their numbers: of one at a time, or of thousands at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Ranks:
    """Who has which rank in a group."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        self._rank_of = {worker: rank for rank, worker in enumerate(members)}
        self._table: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self._rank_of)

    def __contains__(self, worker: int) -> bool:
        return worker in self._rank_of

    def get(self, worker: int) -> int | None:
        """A member's rank; None for everybody else."""
        return self._rank_of.get(worker)

    def of(self, workers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rank of each; -1 for who is no member."""
        if self._table is None:
            self._table = np.full(max(self.members, default=-1) + 2, -1, dtype=np.int64)
            self._table[list(self.members)] = np.arange(len(self.members))
        # Numbers that nobody has lead to the last place of the table, which is nobody's.
        is_known = (workers >= 0) & (workers < len(self._table))
        return self._table[np.where(is_known, workers, -1)]
