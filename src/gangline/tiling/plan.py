# SPDX-License-Identifier: Apache-2.0
"""Who computes which part of each step's output, and who fetches what; the same on every worker.

Each worker owns a tile of every step's output. Where a later step needs more than that (a halo),
either the owners send it, or each worker computes a larger, overlapping tile itself. The plan takes
what costs less, step by step, from the last one to the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gangline.spec.errors import UsageError
from gangline.tiling.exchange import Moves
from gangline.tiling.geometry import Box, Shape, hull, volume

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.tiling.grid import Grid
    from gangline.tiling.layers.base import Layer

HALOS = ("auto", "exchange", "recompute")
_LOOKAHEAD = 8
"""How many steps back it is tried to recompute."""
_BYTES = 4


class Costs(NamedTuple):
    """What is taken to choose between exchanging halos and computing them twice."""

    latency_s: float = 1e-4
    """Of one exchange with the neighbours."""
    bytes_per_s: float = 1e9
    operations_per_s: float = 2e10
    """Floating point operations of one worker."""


@dataclass(slots=True)
class Step:
    """One step of the model: the input (without a layer), or a layer."""

    name: str
    layer: Layer | None
    inputs: tuple[int, ...]
    shape: Shape
    owned: list[Box] = field(default_factory=list)
    """Each worker's tile; together they are the tensor. So for the lists below: one box per worker."""
    computed: list[Box] = field(default_factory=list)
    held: list[Box] = field(default_factory=list)
    """What each worker has after the exchange that follows this step."""
    halo: str = "none"
    """"exchange" or "recompute" where later steps need more than the own tile, else "none"."""

    @property
    def moves(self) -> Moves:
        """The exchange after this step."""
        return Moves(self.owned, self.held)


def make_plan(
    steps: Sequence[Step], grid: Grid, *, halo: str = "auto", costs: Costs | None = None
) -> None:
    """Fills in who owns, computes and holds what. The last step is the output."""
    if halo not in HALOS:
        raise UsageError(f"halo={halo!r} is none of {', '.join(HALOS)}")
    for step in steps:
        step.owned = grid.boxes(step.shape)
    planner = _Planner(steps, halo, costs or Costs())
    for index in reversed(range(len(steps))):
        planner.settle(index)


class _Planner:
    def __init__(self, steps: Sequence[Step], halo: str, costs: Costs) -> None:
        self._steps, self._halo, self._costs = steps, halo, costs
        self._users: list[list[int]] = [[] for _ in steps]
        for index, step in enumerate(steps):
            for source in step.inputs:
                self._users[source].append(index)
        self._known: dict[tuple[int, tuple[Box, ...], int], tuple[float, bool]] = {}

    def settle(self, index: int) -> None:
        """Decides about one step, after all that use it."""
        step = self._steps[index]
        asked: list[list[Box]] = [[] for _ in step.owned]
        for user in dict.fromkeys(self._users[index]):
            for place, source in enumerate(self._steps[user].inputs):
                if source == index:
                    for rank, box in enumerate(
                        self.needed(user, self._steps[user].computed, place)
                    ):
                        asked[rank].append(box)
        step.computed = step.held = list(step.owned)
        if not any(asked):
            return
        wanted = [hull(boxes) for boxes in asked]
        if not self._has_halo(index, wanted):
            return
        _, is_recomputed = self._best(index, wanted, _LOOKAHEAD)
        if is_recomputed:
            step.halo = "recompute"
            step.computed = step.held = self._enlarged(index, wanted)
        else:
            step.halo = "exchange"
            step.held = wanted

    def needed(self, index: int, boxes: Sequence[Box], place: int) -> list[Box]:
        """What each worker needs of an input, to compute its box of this step."""
        step = self._steps[index]
        assert step.layer is not None
        if step.layer.uses_own:
            return list(self._steps[step.inputs[place]].owned)
        shapes = [self._steps[source].shape for source in step.inputs]
        return [step.layer.needs(box, shapes, step.shape)[place] for box in boxes]

    def _has_halo(self, index: int, wanted: Sequence[Box]) -> bool:
        owned = self._steps[index].owned
        return any(hull([own, box]) != own for own, box in zip(owned, wanted, strict=True))

    def _enlarged(self, index: int, wanted: Sequence[Box]) -> list[Box]:
        owned = self._steps[index].owned
        return [hull([own, box]) for own, box in zip(owned, wanted, strict=True)]

    def _best(self, index: int, wanted: Sequence[Box], depth: int) -> tuple[float, bool]:
        """What it costs at least that all workers get what they want, and whether by recomputing."""
        key = (index, tuple(wanted), depth)
        if key not in self._known:
            self._known[key] = self._compared(index, wanted, depth)
        return self._known[key]

    def _compared(self, index: int, wanted: Sequence[Box], depth: int) -> tuple[float, bool]:
        if not self._has_halo(index, wanted):
            return 0.0, False
        exchange = self._exchange_s(index, wanted)
        if self._steps[index].layer is None or self._halo == "exchange":
            return exchange, False
        if self._halo == "recompute":
            return exchange, True
        if not depth:
            return exchange, False
        recompute = self._recompute_s(index, wanted, depth)
        return min((exchange, False), (recompute, True))

    def _exchange_s(self, index: int, wanted: Sequence[Box]) -> float:
        owned = self._steps[index].owned
        most = max(volume(hull([o, w])) - volume(o) for o, w in zip(owned, wanted, strict=True))
        return 2 * (self._costs.latency_s + most * _BYTES / self._costs.bytes_per_s)

    def _recompute_s(self, index: int, wanted: Sequence[Box], depth: int) -> float:
        """Also what its inputs cost more, because more of them is needed."""
        step = self._steps[index]
        assert step.layer is not None
        larger = self._enlarged(index, wanted)
        most = max(volume(box) - volume(own) for box, own in zip(larger, step.owned, strict=True))
        shapes = [self._steps[source].shape for source in step.inputs]
        cost = 3 * most * step.layer.work(shapes) / self._costs.operations_per_s
        for place, source in enumerate(step.inputs):
            more = self._best(source, self.needed(index, larger, place), depth - 1)[0]
            cost += more - self._best(source, self.needed(index, step.owned, place), depth - 1)[0]
        return cost
