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

    from gangline.collectives.wire.elements import Array
    from gangline.collectives.wire.mapping import Mapping

_MAX_PLANS = 256


class Round(NamedTuple):
    """One segment: a piece of every member's part of the tensor."""

    writes: list[tuple[Array, slice]]
    """Places in this member's slot, and what of the tensor goes there: the others' parts."""
    own: slice
    """The piece that this member sums."""
    terms: list[Array]
    """That piece in everybody's slots, in rank order."""
    result: Array
    """Where its sum goes."""
    reads: list[tuple[slice, Array]]
    """All pieces of the tensor, and where their sums are."""


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
        places = [
            slice(index * quota, index * quota + piece.stop - piece.start)
            for index, piece in enumerate(cut)
        ]
        mine = slots[self._rank]
        own = places[self._rank]
        return Round(
            writes=[
                (mine[place], piece)
                for index, (place, piece) in enumerate(zip(places, cut, strict=True))
                if index != self._rank
            ],
            own=cut[self._rank],
            terms=[slot[own] for slot in slots],
            result=result[own],
            reads=[(piece, result[place]) for place, piece in zip(places, cut, strict=True)],
        )
