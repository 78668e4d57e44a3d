# SPDX-License-Identifier: Apache-2.0
"""How a tensor that is summed goes through shared memory: which piece lies where, in which turn.

The same lengths come again in every step of a training run, so plans are kept.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from gangline.collectives.protocol import part_bounds

if TYPE_CHECKING:
    import numpy as np

    from gangline.collectives.elements import Array
    from gangline.collectives.wire.shared_memory.mapping import Mapping

_MAX_PLANS = 256
BLOCK_BYTES = 256 << 10
"""What is copied or added at once: fits the cache, and an abort waits no longer than for this."""


class Sum(NamedTuple):
    """A block of the piece that this member sums: small enough to stay in the cache meanwhile."""

    own: slice
    """Which elements of the tensor."""
    terms: list[Array]
    """These elements in everybody's slots, in rank order."""
    result: Array
    """Where their sum goes."""


class Round(NamedTuple):
    """One segment: a piece of every member's part of the tensor, in blocks."""

    writes: list[tuple[Array, slice]]
    """Places in this member's slot, and what of the tensor goes there: the others' parts."""
    sums: list[Sum]
    """What this member sums."""
    reads: list[tuple[slice, Array]]
    """Elements of the tensor, and where their sums are."""


class Plan(NamedTuple):
    """All rounds of a tensor; the second index is the turn in which it is written, even or odd."""

    rounds: list[tuple[Round, Round]]


class Plans:
    """Makes plans for one mapping, and keeps them."""

    def __init__(self, mapping: Mapping, *, rank: int) -> None:
        self._mapping, self._rank = mapping, rank
        self._size = mapping.layout.members
        self._slots: dict[str, list[list[Array]]] = {}
        self._plans: dict[tuple[str, int], Plan] = {}

    def slots(self, dtype: np.dtype[Any]) -> list[list[Array]]:
        """Everybody's slots as elements of a type; the first index is the turn, even or odd."""
        slots = self._slots.get(dtype.char)
        if slots is None:
            slots = [[record.data.view(dtype) for record in row] for row in self._mapping.slots]
            self._slots[dtype.char] = slots
        return slots

    def plan(self, array: Array) -> Plan:
        """The plan for tensors of this type and length."""
        key = (array.dtype.char, array.size)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._make(array.dtype, array.size)
        return plan

    def close(self) -> None:
        """Lets go of the memory."""
        self._slots.clear()
        self._plans.clear()

    def _make(self, dtype: np.dtype[Any], length: int) -> Plan:
        quota = self._mapping.layout.segment_bytes // (self._size * dtype.itemsize)
        bounds = part_bounds(length, self._size)
        parts = list(pairwise(bounds))
        num_rounds = max(1, -(-(bounds[1] - bounds[0]) // quota))
        rounds = []
        for k in range(num_rounds):
            cut = [
                slice(min(low + k * quota, high), min(low + (k + 1) * quota, high))
                for low, high in parts
            ]
            rounds.append((self._round(dtype, cut, 0), self._round(dtype, cut, 1)))
        return Plan(rounds)

    def _round(self, dtype: np.dtype[Any], cut: list[slice], parity: int) -> Round:
        quota = self._mapping.layout.segment_bytes // (self._size * dtype.itemsize)
        slots = self.slots(dtype)[parity]
        result = self._mapping.results[parity].view(dtype)
        made = Round([], [], [])
        for rank, piece in enumerate(cut):
            for block in _blocks(piece, BLOCK_BYTES // dtype.itemsize):
                start = rank * quota + block.start - piece.start
                place = slice(start, start + block.stop - block.start)
                made.reads.append((block, result[place]))
                if rank == self._rank:
                    terms = [slot[place] for slot in slots]
                    made.sums.append(Sum(block, terms, result[place]))
                else:
                    made.writes.append((slots[self._rank][place], block))
        return made


def _blocks(piece: slice, step: int) -> list[slice]:
    starts = range(piece.start, piece.stop, step)
    return [slice(start, min(start + step, piece.stop)) for start in starts]
