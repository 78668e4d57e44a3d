# SPDX-License-Identifier: Apache-2.0
"""Hands out the parts of global batches to whoever asks, each part once.

A **pool** is what is pulled of one global batch, by one group. Whatever goes wrong in a group, another
one follows that does its step again, with pools of its own. So a part that was handed out is never
taken back, and who asks for the same again is told the same. Nothing of this is written down: a
coordinator that was started again knows nothing of the pools of older groups, and says so; then the
members make another group, and the step is done again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gangline.control.chunking import ChunkSizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.control.shares.pulling import Pulling

KEPT_POOLS = 64
"""Loaders that fetch ahead ask for parts of as many steps at most."""
_MEMORY = 0.5
"""What a worker's last part says of its speed counts so much beside all parts before it."""


class Pool(NamedTuple):
    """The samples start … stop - 1 of the epoch's order, pulled by the members of one group."""

    group: int
    epoch: int
    step: int
    start: int
    stop: int


class UnknownPool(Exception):
    """What was handed out of this pool is not known, so nothing more can be."""


class _Book:
    """What was handed out of one pool, and to whom."""

    def __init__(self, pool: Pool, members: Sequence[int], sizes: ChunkSizes) -> None:
        self.pool = pool
        self.members = tuple(members)
        self.sizes = sizes
        self.next = pool.start
        self.given: dict[int, list[tuple[int, int]]] = {}


class PartsDesk:
    """The pools of one job, and how fast its workers are."""

    def __init__(self, pulling: Pulling, *, first_group: int = 0) -> None:
        """Pools of groups before `first_group` are not known."""
        self._pulling = pulling
        self._first_group = first_group
        self._books: dict[tuple[int, int, int], _Book] = {}
        self._rates: dict[int, float] = {}

    def learn(self, worker: int, samples: int, seconds: float) -> None:
        """A worker has computed a part."""
        if samples < 1 or seconds <= 0:
            return
        rate, before = samples / seconds, self._rates.get(worker)
        self._rates[worker] = rate if before is None else before + _MEMORY * (rate - before)

    def give(
        self,
        worker: int,
        pool: Pool,
        number: int,
        *,
        members: Sequence[int],
        minimum: int,
        ceiling: int,
    ) -> tuple[int, int] | None:
        """The `number`-th part that `worker` gets of the pool; None: nothing is left.

        No part has fewer than `minimum` samples, if the pool has as many. None has more than `ceiling`,
        the most that the worker can hold, unless the rest would be too small. Raises UnknownPool.
        """
        book = self._open(pool, members, minimum=minimum)
        given = book.given.setdefault(worker, [])
        if number < len(given):
            return given[number]
        if number > len(given):
            raise UnknownPool(f"part {number} was asked for, and {len(given)} were handed out")
        left = pool.stop - book.next
        if left == 0:
            return None
        size = self._size(book, worker, left, minimum=minimum, ceiling=ceiling)
        given.append((book.next, book.next + size))
        book.next += size
        return given[-1]

    def _open(self, pool: Pool, members: Sequence[int], *, minimum: int) -> _Book:
        key = pool.group, pool.epoch, pool.step
        book = self._books.get(key)
        if pool.group < self._first_group:
            raise UnknownPool("the coordinator was started again since the group was made")
        if book is None:
            newest = max((one[2] for one in self._books if one[0] == pool.group), default=-1)
            if pool.step < newest - KEPT_POOLS:
                raise UnknownPool(f"step {pool.step} is long over")
            total, count = pool.stop - pool.start, len(members)
            sizes = ChunkSizes(
                self._pulling.scheme,
                total=total,
                workers=count,
                weights=self._weights(members),
                grain=self._pulling.grain_of(total, count, minimum=minimum),
            )
            book = self._books[key] = _Book(pool, members, sizes)
            for old in list(self._books)[:-KEPT_POOLS]:
                del self._books[old]
        elif book.pool != pool:
            raise UnknownPool(
                f"the members differ in what step {pool.step} is: {book.pool}, {pool}"
            )
        return book

    def _size(self, book: _Book, worker: int, left: int, *, minimum: int, ceiling: int) -> int:
        most = max(ceiling, minimum, 1)
        if len(book.members) == 1:
            return min(left, most)
        members = book.members
        rank = members.index(worker) if worker in members else len(members)
        size = min(book.sizes.next(rank, left), most)
        if 0 < left - size < minimum:  # the last part would be too small for a batch
            size = left if left <= most or left < 2 * minimum else left - minimum
        return size

    def _weights(self, members: Sequence[int]) -> list[float]:
        """How fast each is; who is not known is taken to be as fast as the others are on average."""
        known = [self._rates[one] for one in members if one in self._rates]
        usual = sum(known) / len(known) if known else 1.0
        return [self._rates.get(one, usual) for one in members]
