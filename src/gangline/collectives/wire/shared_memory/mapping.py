# SPDX-License-Identifier: Apache-2.0
"""The memory that the members of one host share: where everything is in it.

    counters   one cache line each: how often a member arrived at the barrier, whether it sleeps,
               since which operation its tensors are on a GPU; and for every pair how many pieces
               were sent and taken
    slots      per member two records, used in turn: operation frame, header, data
    results    two, used in turn: each member writes the part that it sums
    parcels    per member: operation frame and two pieces of data, for point-to-point

It is anonymous memory: when its last holder is gone, so is the memory.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gangline.collectives.wire.nouns import cache_bytes
from gangline.collectives.wire.operation import FRAME_BYTES, MAX_HEADER_WORDS

if TYPE_CHECKING:
    from gangline.collectives.elements import Array

LINE_BYTES = 64
_LINE_WORDS = LINE_BYTES // 8
_HEADER_BYTES = MAX_HEADER_WORDS * 8
_PAGE_BYTES = 4096
PARCEL_BYTES = 256 << 10
CROWDED_SEGMENT_BYTES = 16 << 20
MAX_DEFAULT_BYTES = 160 << 20


class Layout(NamedTuple):
    """Sizes and places; the same on all members, as it follows from these two numbers."""

    members: int
    segment_bytes: int
    """How much of a tensor one record holds; a multiple of a page per member."""

    @classmethod
    def of(cls, members: int, segment_bytes: int | None) -> Layout:
        """The layout for segments of about this size.

        By default a segment fits the cache. Where members share cores a barrier is dear, so that
        segments are large, as far as the memory of a large group stays bounded; what is not used
        is not there.
        """
        if segment_bytes is None:
            bounded = MAX_DEFAULT_BYTES // (2 * members + 2)
            is_crowded = members > len(os.sched_getaffinity(0))
            segment_bytes = min(CROWDED_SEGMENT_BYTES if is_crowded else cache_bytes(), bounded)
        per_member = -(-segment_bytes // (members * _PAGE_BYTES)) * _PAGE_BYTES
        return cls(members, per_member * members)

    @property
    def counter_bytes(self) -> int:
        lines = 3 * self.members * LINE_BYTES + 2 * self.members**2 * 8
        return -(-lines // _PAGE_BYTES) * _PAGE_BYTES

    @property
    def record_bytes(self) -> int:
        return _PAGE_BYTES + _HEADER_BYTES + self.segment_bytes

    @property
    def total_bytes(self) -> int:
        slots = 2 * self.members * self.record_bytes
        results = 2 * self.segment_bytes
        return self.counter_bytes + slots + results + self.members * self.parcel_bytes

    @property
    def parcel_bytes(self) -> int:
        return _PAGE_BYTES + 2 * PARCEL_BYTES


def make_memory(layout: Layout) -> int:
    """A descriptor of new anonymous memory that nobody can shrink under the others."""
    descriptor = os.memfd_create("gangline-wire", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, layout.total_bytes)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


class Record(NamedTuple):
    """What one member says in one turn."""

    frame: memoryview
    header: Array
    data: Array
    """Bytes."""


class Parcel(NamedTuple):
    """What one member sends to another."""

    frame: memoryview
    halves: list[Array]
    """Bytes."""


class Mapping:
    """The shared memory, cut into its named places."""

    def __init__(self, descriptor: int, layout: Layout) -> None:
        size, n = layout.total_bytes, layout.members
        if os.fstat(descriptor).st_size != size:
            raise ValueError(f"the memory has {os.fstat(descriptor).st_size} bytes, not {size}")
        self.layout = layout
        self._memory = mmap.mmap(descriptor, size)
        whole = memoryview(self._memory)
        words = whole[: layout.counter_bytes].cast("q")
        self.arrived = words[: n * _LINE_WORDS : _LINE_WORDS]
        self.sleeping = words[n * _LINE_WORDS : 2 * n * _LINE_WORDS : _LINE_WORDS]
        self.on_device = words[2 * n * _LINE_WORDS : 3 * n * _LINE_WORDS : _LINE_WORDS]
        pairs = 3 * n * _LINE_WORDS
        self.sent = words[pairs : pairs + n * n]
        self.taken = words[pairs + n * n : pairs + 2 * n * n]
        everything = np.frombuffer(self._memory, dtype=np.uint8)
        place = layout.counter_bytes
        self.slots: list[list[Record]] = []
        for _ in range(2):
            row = []
            for _ in range(n):
                row.append(_record(whole, everything, place, layout))
                place += layout.record_bytes
            self.slots.append(row)
        self.results: list[Array] = []
        for _ in range(2):
            self.results.append(everything[place : place + layout.segment_bytes])
            place += layout.segment_bytes
        self.parcels: list[Parcel] = []
        for _ in range(n):
            first, second = place + _PAGE_BYTES, place + _PAGE_BYTES + PARCEL_BYTES
            frame = whole[place : place + FRAME_BYTES]
            place += layout.parcel_bytes
            self.parcels.append(Parcel(frame, [everything[first:second], everything[second:place]]))

    def close(self) -> None:
        """Gives the memory back, as soon as nobody looks at it any more."""
        for name in ("arrived", "sleeping", "on_device", "sent", "taken"):
            getattr(self, name).release()
        del self.slots, self.results, self.parcels
        try:
            self._memory.close()
        except BufferError:
            # A view of it is still referenced, by the traceback of an error for example; the
            # memory goes with the last view.
            del self._memory


def _record(whole: memoryview, everything: Array, place: int, layout: Layout) -> Record:
    header = place + _PAGE_BYTES
    data = header + _HEADER_BYTES
    return Record(
        whole[place : place + FRAME_BYTES],
        everything[header:data].view(np.int64),
        everything[data : data + layout.segment_bytes],
    )
