# SPDX-License-Identifier: Apache-2.0
"""Point-to-point through shared memory: a sender has two places for pieces, used in turn.

For every pair of members there are two counters: how many pieces were sent, and how many taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.collectives.elements import TYPE_NAMES
from gangline.collectives.wire.operation import Kind, Operation, check_same

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.collectives.elements import Array, Flat
    from gangline.collectives.wire.shared_memory.doorbells import Doorbells
    from gangline.collectives.wire.shared_memory.mapping import Mapping


class Parcels:
    """What this member sends to single members, and receives from them."""

    def __init__(
        self, mapping: Mapping, doorbells: Doorbells, *, rank: int, timeout_s: float
    ) -> None:
        self._sent, self._taken = mapping.sent, mapping.taken
        self._parcels, self._bells = mapping.parcels, doorbells
        self._rank, self._size = rank, mapping.layout.members
        self._timeout_s = timeout_s

    def send(self, flat: Flat, to: int) -> None:
        """Returns when the last pieces lie in the mapping: the receiver may still be busy."""
        parcel, array = self._parcels[self._rank], flat.array
        first = self._rank * self._size
        for peer in range(self._size):
            # The places are the same for all receivers: the one before must have taken all.
            self._await(self._taken, first + peer, self._sent[first + peer], peer)
        pair = first + to
        parcel.frame[:] = Operation(Kind.SEND, self._sent[pair], flat.code, array.size).encode()
        for low, high in self._spans(array):
            count = self._sent[pair]
            self._await(self._taken, pair, count - 1, to)
            parcel.halves[count & 1].view(array.dtype)[: high - low] = array[low:high]
            self._advance(self._sent, pair, to)

    def receive(self, flat: Flat, source: int) -> None:
        parcel, array = self._parcels[source], flat.array
        pair = source * self._size + self._rank
        expected = Operation(Kind.SEND, self._taken[pair], flat.code, array.size)
        for low, high in self._spans(array):
            count = self._taken[pair]
            self._await(self._sent, pair, count + 1, source)
            if low == 0:
                check_same(expected, bytes(parcel.frame), peer=source, type_names=TYPE_NAMES)
            array[low:high] = parcel.halves[count & 1].view(array.dtype)[: high - low]
            self._advance(self._taken, pair, source)

    def close(self) -> None:
        """Lets go of the memory."""
        del self._sent, self._taken, self._parcels

    def _await(self, counters: memoryview, pair: int, value: int, peer: int) -> None:
        """Waits until a counter of this pair has reached the value."""
        if counters[pair] < value:
            self._bells.wait(
                lambda: [peer] if counters[pair] < value else [],
                on=(peer,),
                timeout_s=self._timeout_s,
            )
        self._bells.fence()

    def _advance(self, counters: memoryview, pair: int, peer: int) -> None:
        """What was written before counts from now on."""
        self._bells.fence()
        counters[pair] += 1
        self._bells.fence()
        self._bells.wake(peer)

    def _spans(self, array: Array) -> Iterator[tuple[int, int]]:
        step = self._parcels[self._rank].halves[0].nbytes // array.itemsize
        for low in range(0, max(array.size, 1), step):
            yield low, min(low + step, array.size)
