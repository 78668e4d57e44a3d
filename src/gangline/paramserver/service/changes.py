# SPDX-License-Identifier: Apache-2.0
"""After which update each row of a shard's parameters has changed last.

So who has read the parameters before is sent only the rows that differ since. Rows are counted for a
parameter from its first update by rows on; before, and for parameters that are always updated as a
whole, one number is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class RowChanges:
    """What is known of the changes of some parameters. Updates are numbered from 0."""

    def __init__(self, lengths: Sequence[int]) -> None:
        """`lengths`: how many rows each parameter has."""
        self._lengths = tuple(lengths)
        self._floor = 0
        self._whole = [0] * len(self._lengths)
        """By parameter: how many updates there were when all of it had changed last."""
        self._rows: list[Tensor | None] = [None] * len(self._lengths)
        """By parameter: the same for each row; None: no row has changed by itself since."""

    def begin_anew(self, applied: int) -> None:
        """Nothing is known of what was before so many updates."""
        self._floor = applied
        self._whole = [applied] * len(self._lengths)
        self._rows = [None] * len(self._lengths)

    def note(self, applied: int, changed: Sequence[Tensor | None]) -> None:
        """An update, with which there are `applied` of them, has changed these rows."""
        for place, rows in enumerate(changed):
            if rows is None:
                self._whole[place], self._rows[place] = applied, None
            elif len(rows):
                counted = self._rows[place]
                if counted is None:
                    counted = torch.zeros(self._lengths[place], dtype=torch.int64)
                    self._rows[place] = counted
                counted[rows] = applied

    def since(self, place: int, applied: int) -> Tensor | None:
        """The rows that have changed since there were so many updates; None: all may have."""
        if applied < max(self._floor, self._whole[place]):
            return None
        counted = self._rows[place]
        if counted is None:
            return torch.empty(0, dtype=torch.int64)
        return torch.nonzero(counted > applied).reshape(-1)

    def among(self, place: int, rows: Tensor, applied: Tensor) -> Tensor:
        """Those of these rows that have changed since there were so many updates, a number for each."""
        counted = self._rows[place]
        least = max(self._floor, self._whole[place])
        newest = (
            torch.full_like(applied, least) if counted is None else counted[rows].clamp(min=least)
        )
        changed: Tensor = rows[(newest > applied) | (applied < 0)]
        return changed


def union(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """The rows that are in one of them; None is all rows."""
    if one is None or other is None:
        return None
    if not len(one) or not len(other):
        return one if len(one) else other
    both: Tensor = torch.unique(torch.cat([one, other]))
    return both
