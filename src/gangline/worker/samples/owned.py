# SPDX-License-Identifier: Apache-2.0
"""Data that stays with its owner: each worker's samples are a part of the union of all workers' data.

The union is only a way to number samples: those of the first founder, then those of the second, and so
on. Nobody but its owner ever reads one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, overload

import msgspec

from gangline.collectives import gather_bytes
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.collectives import Group
    from gangline.worker.samples.order import Agree, Company, Indices, Order


class Holding(NamedTuple):
    """What one worker has."""

    samples: int
    """How many of them an epoch uses; 0: none."""
    batch: int
    """How many its steps take: its loader's batch size."""


class Holdings(NamedTuple):
    """What all founders have, by rank, and which of it is this worker's."""

    parts: tuple[Holding, ...]
    rank: int

    @property
    def own(self) -> Holding:
        """This worker's."""
        return self.parts[self.rank]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Each founder's samples."""
        return tuple(one.samples for one in self.parts)

    @property
    def total(self) -> int:
        """The samples of an epoch."""
        return sum(self.lengths)

    @property
    def first(self) -> int:
        """Where in the union this worker's samples begin."""
        return sum(self.lengths[: self.rank])

    @property
    def global_batch(self) -> int:
        """One step of all that have samples."""
        return sum(one.batch for one in self.parts if one.samples)


def gather_holdings(group: Group, own: Holding) -> Holdings:
    """What all founders have: numbers of samples, and nothing else of them."""
    told = gather_bytes(group, msgspec.msgpack.encode(own))
    parts = tuple(Holding(*msgspec.msgpack.decode(one, type=tuple[int, int])) for one in told)
    found = Holdings(parts, group.rank)
    if not found.total:
        raise UsageError(
            "no worker has a sample to train on: with data='worker' the loader of each worker has its "
            "own data set, and at least one must not be empty"
        )
    return found


class OwnOrder:
    """This worker's order of its own samples, in the numbers of the union."""

    def __init__(self, order: Order, holdings: Holdings) -> None:
        self.name = order.name
        self.length = holdings.total
        self.own = holdings.own
        self._order = order
        self._first = holdings.first

    def indices(self, epoch: int, agree: Agree, company: Company) -> Indices:
        """What its loader draws, found by the numbers of the union."""
        return _Moved(self._order.indices(epoch, agree, company), self._first, self.own.samples)

    def end(self) -> None:
        """All of its samples were handed out."""
        self._order.end()


class _Moved:
    """An order whose first place has another number."""

    def __init__(self, indices: Indices, first: int, count: int) -> None:
        self._indices = indices
        self._first = first
        self._count = count

    @overload
    def __getitem__(self, place: int, /) -> int: ...
    @overload
    def __getitem__(self, place: slice, /) -> Sequence[int]: ...
    def __getitem__(self, place: int | slice, /) -> int | Sequence[int]:
        if isinstance(place, slice):
            return self._indices[place.start - self._first : place.stop - self._first]
        own = place - self._first
        # A guest of another owner computes along, and what it computes counts nothing.
        return self._indices[own if 0 <= own < self._count else 0]
