# SPDX-License-Identifier: Apache-2.0
"""Exchanges through shared memory, for members on one host.

A tensor goes through in segments. In each turn a member writes its next segment into its slot; in
the turn after, it sums its part of everybody's slots into the result; in the turn after that, it
reads the result. A barrier ends each turn. Slots and results are double, used in turn, so that one
barrier per turn is enough: nobody can be two turns ahead of anybody. An operation whose slots
nobody reads any more when it ends leaves the same ones to the next: what is small stays in the
cache, and the second ones take no memory until they are needed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from gangline.collectives.elements import TYPE_NAMES, Array, Flat, sum_into
from gangline.collectives.protocol import part_bounds
from gangline.collectives.wire.measuring import Meter
from gangline.collectives.wire.operation import Kind, Operation, check_same
from gangline.collectives.wire.shared_memory.parcels import Parcels
from gangline.collectives.wire.shared_memory.plans import Plans, Round, Sum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.collectives.protocol import Header
    from gangline.collectives.wire.nouns import HopStats
    from gangline.collectives.wire.shared_memory.doorbells import Doorbells
    from gangline.collectives.wire.shared_memory.mapping import Mapping

DIRECT_BYTES = 128 << 10
"""Up to so much over all members, everybody sums everything: cheaper than a second barrier."""


COPIED_BYTES = 2 << 20
"""A segment where nothing is summed: an abort waits no longer than for its copies."""


class SharedExchange:
    """This member's part in the exchanges through one mapping."""

    name = "shared memory"

    def __init__(
        self, mapping: Mapping, doorbells: Doorbells, *, rank: int, timeout_s: float
    ) -> None:
        self._mapping, self._doorbells = mapping, doorbells
        self._rank, self._size = rank, mapping.layout.members
        self._timeout_s = timeout_s
        self._sequence = 0
        self._half = 0
        self._plans = Plans(mapping, rank=rank)
        self._parcels = Parcels(mapping, doorbells, rank=rank, timeout_s=timeout_s)
        self._meter = Meter()

    def all_reduce(self, flat: Flat, header: Header | None) -> None:
        started, array = time.perf_counter(), flat.array
        operation = self._next(Kind.ALL_REDUCE, flat, header=header)
        if array.nbytes * self._size <= DIRECT_BYTES:
            length, slots = array.size, self._plans.slots(array.dtype)
            slots[self._half][self._rank][:length] = array
            self._open(operation, header)
            sum_into(array, [slot[:length] for slot in slots[self._half]], flat.dtype)
            self._half ^= 1
        else:
            self._all_reduce_in_turns(flat, operation, header)
        self._meter.moved(array.nbytes, time.perf_counter() - started)

    def _all_reduce_in_turns(self, flat: Flat, operation: Operation, header: Header | None) -> None:
        array, rounds = flat.array, self._plans.plan(flat.array).rounds
        last, half = len(rounds) - 1, self._half
        self._write(array, rounds[0][half])
        self._open(operation, header)
        for index in range(last + 1):
            for block in rounds[index][half].sums:
                self._sum(flat, block, out=block.result)
            if index < last:
                self._write(array, rounds[index + 1][half ^ 1])
            if index:
                self._read(array, rounds[index - 1][half ^ 1])
            self._barrier()
            half ^= 1
        self._read(array, rounds[last][half ^ 1])

    def reduce_scatter(self, flat: Flat) -> Array:
        started, array = time.perf_counter(), flat.array
        operation = self._next(Kind.REDUCE_SCATTER, flat)
        bounds = part_bounds(array.size, self._size)
        start = bounds[self._rank]
        part = np.empty(bounds[self._rank + 1] - start, dtype=array.dtype)
        for index, both in enumerate(self._plans.plan(array).rounds):
            self._write(array, both[self._half])
            self._barrier() if index else self._open(operation)
            for block in both[self._half].sums:
                out = part[block.own.start - start : block.own.stop - start]
                self._sum(flat, block, out=out)
            self._half ^= 1
        self._meter.moved(array.nbytes, time.perf_counter() - started)
        return part

    def all_gather(self, flat: Flat, rows: list[Array]) -> None:
        started, array = time.perf_counter(), flat.array
        operation = self._next(Kind.ALL_GATHER, flat)
        slots = self._plans.slots(array.dtype)
        for low, high in self._spans(array):
            slots[self._half][self._rank][: high - low] = array[low:high]
            self._barrier() if low else self._open(operation)
            for row, slot in zip(rows, slots[self._half], strict=True):
                row[low:high] = slot[: high - low]
            self._half ^= 1
        self._meter.moved(array.nbytes, time.perf_counter() - started)

    def broadcast(self, flat: Flat, root: int) -> None:
        started, array = time.perf_counter(), flat.array
        operation = self._next(Kind.BROADCAST, flat, root=root)
        slots = self._plans.slots(array.dtype)
        for low, high in self._spans(array):
            if self._rank == root:
                slots[self._half][root][: high - low] = array[low:high]
            self._barrier() if low else self._open(operation)
            if self._rank != root:
                array[low:high] = slots[self._half][root][: high - low]
            self._half ^= 1
        self._meter.moved(array.nbytes, time.perf_counter() - started)

    def send(self, flat: Flat, to: int) -> None:
        """Returns when the last pieces lie in the mapping: the receiver may still be busy."""
        self._parcels.send(flat, to)

    def receive(self, flat: Flat, source: int) -> None:
        self._parcels.receive(flat, source)

    # For the way over device memory, whose members meet here. Meanwhile another thread gives the
    # device its work and needs Python's lock for it: so they wait asleep.

    def note_device(self) -> None:
        """From the next operation on, this member's tensors are on a GPU."""
        if not self._mapping.on_device[self._rank]:
            self._mapping.on_device[self._rank] = self._sequence + 1

    def have_all_noted_a_device(self) -> bool:
        """Whether all members have, by the present operation: all of them answer alike after it."""
        return all(0 < since <= self._sequence for since in self._mapping.on_device)

    def begin_sum(self, dtype: int, length: int, header: Header | None) -> None:
        """Begins a sum whose data is elsewhere: compares what the members do, reduces the header."""
        self._sequence += 1
        words = 0 if header is None else len(header)
        operation = Operation(Kind.ALL_REDUCE, self._sequence, dtype, length, words)
        self._open(operation, header, is_quiet=True)
        self._half ^= 1

    def meet(self) -> None:
        """Returns when all members have come here."""
        self._barrier(is_quiet=True)

    def note_moved(self, num_bytes: int, duration_s: float) -> None:
        """So much was exchanged elsewhere in so long."""
        self._meter.moved(num_bytes, duration_s)

    def hops(self) -> list[HopStats]:
        """All members use the same memory: what is measured holds for each of them."""
        return [self._meter.stats(peer) for peer in range(self._size) if peer != self._rank]

    def hang_up(self) -> None:
        """Tells the others that this member is gone; from any thread."""
        self._doorbells.hang_up()

    def close(self) -> None:
        self._doorbells.close()
        self._plans.close()
        self._parcels.close()
        self._mapping.close()

    def _next(
        self, kind: Kind, flat: Flat, *, header: Header | None = None, root: int = 0
    ) -> Operation:
        self._sequence += 1
        words = 0 if header is None else len(header)
        return Operation(kind, self._sequence, flat.code, flat.array.size, words, root)

    def _open(
        self, operation: Operation, header: Header | None = None, *, is_quiet: bool = False
    ) -> None:
        """The first barrier of an operation: the members compare what they are about to do."""
        records = self._mapping.slots[self._half]
        frame, words = operation.encode(), operation.header_words
        records[self._rank].frame[:] = frame
        if header is not None:
            records[self._rank].header[:words] = header
        started = time.perf_counter()
        self._barrier(is_first=True, is_quiet=is_quiet)
        self._meter.answered(time.perf_counter() - started)
        for peer, record in enumerate(records):
            if record.frame != frame:
                check_same(operation, bytes(record.frame), peer=peer, type_names=TYPE_NAMES)
            if header is not None:
                np.maximum(header, record.header[:words], out=header)

    def _barrier(self, *, is_first: bool = False, is_quiet: bool = False) -> None:
        self._doorbells.barrier(self._timeout_s, is_first=is_first, is_quiet=is_quiet)

    def _sum(self, flat: Flat, block: Sum, *, out: Array) -> None:
        """Sums one block, in rank order; this member's own term never left the tensor."""
        self._doorbells.check()
        terms = list(block.terms)
        terms[self._rank] = flat.array[block.own]
        sum_into(out, terms, flat.dtype)

    def _write(self, array: Array, current: Round) -> None:
        """Writes what the others will sum."""
        for place, block in current.writes:
            self._doorbells.check()
            place[:] = array[block]

    def _read(self, array: Array, current: Round) -> None:
        """Reads the sums of all parts."""
        for block, place in current.reads:
            self._doorbells.check()
            array[block] = place

    def _spans(self, array: Array) -> Iterator[tuple[int, int]]:
        """The segments of a tensor that is only copied; an empty tensor has one, too."""
        step = min(COPIED_BYTES, self._mapping.layout.segment_bytes) // array.itemsize
        for low in range(0, max(array.size, 1), step):
            yield low, min(low + step, array.size)
