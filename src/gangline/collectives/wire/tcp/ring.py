# SPDX-License-Identifier: Apache-2.0
"""Exchanges over TCP: a ring of members, each sending to the next, receiving from the one before.

The calling thread does everything. A tensor is cut into one chunk per member and each chunk into
pieces; a piece is passed on as soon as it has been received (and added), so that all links work at
the same time and a piece is still in the cache when it is added and sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gangline.collectives.elements import HALVES, Array, Flat, narrow_into, sum_into, widen
from gangline.collectives.protocol import Header, part_bounds
from gangline.collectives.wire.nouns import HopStats, cache_bytes
from gangline.collectives.wire.operation import Kind, Operation
from gangline.collectives.wire.tcp.passing import Course, Incoming, Passing, Traffic
from gangline.collectives.wire.waiting import Deadline

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangline.collectives.wire.tcp.links import Links

GATHERED_BYTES = 64 << 10
"""Up to so much over all members, everybody sums everything: that takes half the hops."""
PAIR_BYTES = 1 << 20
"""The same between two members: they send no more by it than in a ring, and only sum more."""
CHAIN_BYTES, CHAIN_PIECES = 64 << 10, 16
"""A broadcast goes from member to member, and who has received a piece passes it on: in how small, and
how many pieces, so that the last member is not kept waiting for each of the others to have it all."""


class RingExchange:
    """This member's part in the exchanges of one ring."""

    name = "TCP"

    def __init__(self, links: Links, *, deadline: Deadline) -> None:
        membership = links.membership
        self._links, self._options = links, membership.options
        self._rank, self._size = membership.rank, membership.size
        self._segment_bytes = self._options.segment_bytes or cache_bytes()
        following = links.to((self._rank + 1) % self._size, "ring", deadline=deadline)
        before = links.source((self._rank - 1) % self._size, "ring", deadline=deadline)
        self._ring = Course(following, before, links.alarm, self._options.timeout_s)
        self._sequence = 0
        self._parcels: dict[tuple[int, int], int] = {}

    def all_reduce(self, flat: Flat, header: Header | None) -> None:
        operation = self._next(Kind.ALL_REDUCE, flat, header=header)
        gathered_bytes = PAIR_BYTES if self._size == 2 else GATHERED_BYTES
        if flat.array.nbytes * self._size <= gathered_bytes:
            rows = [np.empty_like(flat.array) for _ in range(self._size)]
            rows[self._rank][:] = flat.array
            self._pass(self._gathering(rows, with_header=True), operation, header)
            sum_into(flat.array, rows, flat.dtype)
        elif flat.dtype in HALVES:
            wide = widen(flat)
            self._pass(self._reducing(wide, with_header=True), operation, header)
            self._narrow_own(flat, wide)
            self._pass(self._gathering(self._chunks(flat.array)))
        else:
            reducing = self._reducing(flat.array, with_header=True)
            gathering = self._gathering(self._chunks(flat.array))
            both = reducing._replace(
                outgoing=[*reducing.outgoing, *gathering.outgoing],
                incoming=[*reducing.incoming, *gathering.incoming],
            )
            self._pass(both, operation, header)

    def reduce_scatter(self, flat: Flat) -> Array:
        operation = self._next(Kind.REDUCE_SCATTER, flat)
        array = widen(flat) if flat.dtype in HALVES else flat.array
        self._pass(self._reducing(array), operation)
        if flat.dtype in HALVES:
            self._narrow_own(flat, array)
        return self._chunks(flat.array)[self._rank].copy()

    def all_gather(self, flat: Flat, rows: list[Array]) -> None:
        operation = self._next(Kind.ALL_GATHER, flat)
        np.copyto(rows[self._rank], flat.array)
        self._pass(self._gathering(rows), operation)

    def broadcast(self, flat: Flat, root: int) -> None:
        operation = self._next(Kind.BROADCAST, flat, root=root)
        by_size = min(CHAIN_PIECES, flat.array.nbytes // CHAIN_BYTES)
        pieces = self._pieces(flat.array, max(self._num_pieces([flat.array]), by_size))
        is_last = (self._rank + 1) % self._size == root
        traffic = Traffic(
            outgoing=[] if is_last else pieces,
            incoming=[] if self._rank == root else [Incoming(piece, False) for piece in pieces],
            lag=len(pieces) if self._rank == root else 0,
        )
        self._pass(traffic, operation)

    def send(self, flat: Flat, to: int) -> None:
        pieces = self._pieces(flat.array, self._num_pieces([flat.array]))
        operation = self._next_parcel(flat, self._rank, to)
        link = self._links.to(to, "direct", deadline=Deadline(self._options.timeout_s))
        course = self._ring._replace(outgoing=link, incoming=None)
        Passing(Traffic(pieces, [], len(pieces)), course, operation=operation).run()

    def receive(self, flat: Flat, source: int) -> None:
        pieces = self._pieces(flat.array, self._num_pieces([flat.array]))
        operation = self._next_parcel(flat, source, self._rank)
        link = self._links.source(source, "direct", deadline=Deadline(self._options.timeout_s))
        course = self._ring._replace(outgoing=None, incoming=link)
        incoming = [Incoming(piece, False) for piece in pieces]
        Passing(Traffic([], incoming, 0), course, operation=operation).run()

    def hops(self) -> list[HopStats]:
        return self._links.hops()

    def hang_up(self) -> None:
        """Breaks all connections, from any thread."""
        self._links.hang_up()

    def close(self) -> None:
        self._links.close()

    # What travels

    def _next(
        self, kind: Kind, flat: Flat, *, header: Header | None = None, root: int = 0
    ) -> Operation:
        self._sequence += 1
        words = 0 if header is None else len(header)
        checksum = self._options.checksum
        return Operation(kind, self._sequence, flat.code, flat.array.size, words, root, checksum)

    def _next_parcel(self, flat: Flat, source: int, to: int) -> Operation:
        number = self._parcels[source, to] = self._parcels.get((source, to), 0) + 1
        return Operation(
            Kind.SEND, number, flat.code, flat.array.size, checksum=self._options.checksum
        )

    def _pass(
        self, traffic: Traffic, operation: Operation | None = None, header: Header | None = None
    ) -> None:
        Passing(traffic, self._ring, operation=operation, header=header).run()

    def _reducing(self, array: Array, *, with_header: bool = False) -> Traffic:
        """Chunks go round and grow: each ends, complete, at the member of the same number."""
        chunks = self._chunks(array)
        count = self._num_pieces(chunks)
        outgoing, incoming = [], []
        for step in range(self._size - 1):
            outgoing += self._pieces(chunks[(self._rank - step - 1) % self._size], count)
            arriving = self._pieces(chunks[(self._rank - step - 2) % self._size], count)
            incoming += [Incoming(piece, True) for piece in arriving]
        return self._traffic(outgoing, incoming, count, with_header=with_header)

    def _gathering(self, rows: list[Array], *, with_header: bool = False) -> Traffic:
        """Everybody's row goes round once."""
        count = self._num_pieces(rows)
        outgoing, incoming = [], []
        for step in range(self._size - 1):
            outgoing += self._pieces(rows[(self._rank - step) % self._size], count)
            arriving = self._pieces(rows[(self._rank - step - 1) % self._size], count)
            incoming += [Incoming(piece, False) for piece in arriving]
        return self._traffic(outgoing, incoming, count, with_header=with_header)

    def _traffic(
        self, outgoing: list[Array], incoming: list[Incoming], count: int, *, with_header: bool
    ) -> Traffic:
        every = count if with_header else 0
        return Traffic(outgoing, incoming, count, every, (self._size - 1) * count)

    def _chunks(self, array: Array) -> list[Array]:
        bounds = part_bounds(array.size, self._size)
        return [array[bounds[i] : bounds[i + 1]] for i in range(self._size)]

    def _narrow_own(self, flat: Flat, wide: Array) -> None:
        own = self._chunks(flat.array)[self._rank]
        narrow_into(own, self._chunks(wide)[self._rank], flat.dtype)

    def _num_pieces(self, chunks: Iterable[Array]) -> int:
        """Into how many pieces each chunk is cut; the same number on all members."""
        largest = max(chunk.nbytes for chunk in chunks)
        return max(1, -(-largest // self._segment_bytes))

    def _pieces(self, chunk: Array, count: int) -> list[Array]:
        bounds = part_bounds(chunk.size, count)
        return [chunk[bounds[i] : bounds[i + 1]] for i in range(count)]
