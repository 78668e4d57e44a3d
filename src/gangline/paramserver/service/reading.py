# SPDX-License-Identifier: Apache-2.0
"""What a client has read of each shard, so that it asks only for the rows that differ from it.

That holds as long as the parameters are what was written into them. Torch counts the changes of a
tensor: where somebody else has changed one since (a loop that clamps it, `max_norm` of an embedding),
it is pulled whole. Changes through `.data` are not seen: who makes them calls `spoil`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.paramserver.service.changes import union

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from torch import Tensor

Standing = tuple[int, int]
"""Which history of updates was read, and how many of them."""


class Reading:
    """Of each shard how far it was read, and of each parameter what has become of it since."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._standings: dict[int, Standing] = {}
        self._versions: dict[int, int] = {}
        """By parameter: how often it had been changed when it was as the servers sent it."""
        self._own: dict[int, Tensor | None] = {}
        """By parameter: the rows that this worker has changed itself; None: all."""

    def begin(self, num_shards: int) -> None:
        """The parameters are those that all shards begin with."""
        self._standings = dict.fromkeys(range(num_shards), (0, 0))
        self._note(range(len(self._parameters)))

    def spoil(self) -> None:
        """The parameters are others than were read: everything is pulled whole."""
        self._standings.clear()

    def note_own(self, index: int, rows: Tensor | None) -> None:
        """This worker has changed these rows itself (None: all), and nothing else of the parameter."""
        if index in self._versions:
            self._own[index] = union(self._own[index], rows) if index in self._own else rows
            self._versions[index] = self._parameters[index]._version

    def standing(self, shard: int) -> Standing | None:
        """How far a shard was read; None: what was read holds no more."""
        return self._standings.get(shard)

    def own(self, indices: Sequence[int], unkept: Collection[int]) -> dict[int, Tensor | None]:
        """Of these parameters, the rows that are needed whatever the servers have changed.

        `unkept` are those that must come whole, because nothing is kept that rows could be put into.
        """
        changed = {i: self._own[i] for i in indices if i in self._own}
        lost = {i: None for i in indices if i in unkept or not self.is_as_read(i)}
        return {**changed, **lost}

    def note_pull(self, standings: dict[int, Standing]) -> None:
        """All parameters were written as these shards had them."""
        self._standings = standings
        self._note(range(len(self._parameters)))

    def note_rows(self, indices: Iterable[int]) -> None:
        """Some rows of these were written beside a pull: they are newer, and need not come again."""
        for index in indices:
            self._versions[index] = self._parameters[index]._version

    def is_as_read(self, index: int) -> bool:
        """Whether nobody has changed a parameter since it was written."""
        return self._versions.get(index) == self._parameters[index]._version

    def _note(self, indices: Iterable[int]) -> None:
        self._versions = {index: self._parameters[index]._version for index in indices}
        self._own = {}
