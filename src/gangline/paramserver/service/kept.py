# SPDX-License-Identifier: Apache-2.0
"""The newest consistent cut that a client has pulled: what lost shards are rebuilt from.

Shards may be at different updates when they answer, so that a pull is no cut. What was pulled by rows
since the last cut is noted, and put into it with the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from torch import Tensor

Rows = tuple["Tensor", "Tensor"]
"""The numbers of some rows, and their values."""


class Kept:
    """All parameters after one update, in main memory. One thread."""

    def __init__(self) -> None:
        self.at: int | None = None
        """The first update that is not in it; None: nothing is kept."""
        self._values: dict[int, Tensor] = {}
        self._own: set[int] = set()
        """Whose values are this object's, to be changed; others belong to who sent them."""
        self._noted: dict[int, list[Rows]] = {}
        self._missed: set[int] = set()
        """What came whole since the cut, and was not kept."""

    def begin(self, parameters: Sequence[Tensor]) -> None:
        """Nothing was applied yet: the parameters as they are now are a cut."""
        self._values = {i: p.detach().cpu().clone() for i, p in enumerate(parameters)}
        self._own = set(self._values)
        self._noted, self._missed, self.at = {}, set(), 0

    @property
    def missed(self) -> Collection[int]:
        """Parameters that must come whole: rows would be put into values of long ago."""
        return self._missed

    def values(self, indices: Sequence[int]) -> list[Tensor]:
        """Of these parameters."""
        return [self._values[index] for index in indices]

    def tensors(self) -> Iterator[Tensor]:
        """All that is needed of what was pulled."""
        yield from self._values.values()
        for noted in self._noted.values():
            for rows, values in noted:
                yield from (rows, values)

    def note(
        self,
        values: Mapping[int, Tensor],
        changed: Mapping[int, Rows],
        applied: Collection[int],
    ) -> None:
        """A pull has brought this; the shards had applied so much."""
        (at,) = applied if len(applied) == 1 else (None,)
        for index, value in values.items():
            self._noted.pop(index, None)
            if at is None:
                self._missed.add(index)
            else:
                self._values[index] = value
                self._own.discard(index)
        for index, rows in changed.items():
            if len(rows[0]):
                self._noted.setdefault(index, []).append(rows)
        if at is None:
            self._shorten()
        else:
            self._put()
            self._missed.clear()
            self.at = at

    def miss(self) -> None:
        """A pull was not of everything: what is kept stays a cut, which rows cannot be put into."""
        self._missed.update(self._values)
        self._noted.clear()

    def _put(self) -> None:
        for index, noted in self._noted.items():
            if index not in self._own:
                self._values[index] = self._values[index].clone()
                self._own.add(index)
            for rows, values in noted:
                self._values[index][rows] = values
        self._noted.clear()

    def _shorten(self) -> None:
        """No more rows are noted than twice as many as differ: who is never at a cut keeps few."""
        for index, noted in self._noted.items():
            count = sum(len(rows) for rows, _ in noted)
            if len(noted) > 1 and count > len(self._values[index]):
                self._noted[index] = [_newest(noted)]


def _newest(noted: Sequence[Rows]) -> Rows:
    """Each row once, with the value that came last."""
    rows = torch.cat([rows for rows, _ in noted])
    values = torch.cat([values for _, values in noted])
    unique, places = torch.unique(rows, return_inverse=True)
    last = torch.zeros(len(unique), dtype=torch.int64)
    last.scatter_reduce_(0, places, torch.arange(len(rows)), reduce="amax")
    return unique, values[last]
