# SPDX-License-Identifier: Apache-2.0
"""Which machines make a pipeline together, and which stay alone: the layout of a job.

Every way to part a few machines into pipelines is looked at; each is cut in the best way for its share,
and shares are such that all are done together. Of many machines, neighbours in the order given make
pipelines.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.planning.allocation.balanced import balanced
from gangline.planning.allocation.proportional import proportional
from gangline.planning.pipelines.copies import place_copies
from gangline.planning.pipelines.single import Asked, Solution, solve
from gangline.spec.errors import UnsupportedError
from gangline.spec.pipelines import Layout, Links, Pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gangline.spec.pipelines import Layer, Machine

EVERY_PARTITION = 5
"""Up to so many machines, every way to part them is considered."""
_Block = tuple[int, ...]


def best_layout(
    layers: Sequence[Layer],
    machines: Sequence[Machine],
    global_batch: int,
    *,
    asked: Asked | None = None,
    links: Links | None = None,
    keep_copies: bool = True,
    everybody: bool = False,
) -> tuple[Layout, tuple[Solution, ...]]:
    """The layout whose step is fastest. Raises UnsupportedError, with numbers, where nothing fits.

    Machines that would not make it faster are left out; with `everybody` only where they must be.
    """
    search = _Layouts(layers, machines, global_batch, asked or Asked(), links or Links())
    found = [
        one for blocks in _partitions(len(machines)) if (one := search.weigh(blocks, everybody))
    ]
    if everybody and not found:
        found = [one for blocks in _partitions(len(machines)) if (one := search.weigh(blocks))]
    if not found:
        raise UnsupportedError(_misfit(layers, machines, asked or Asked()))
    step_s, solutions = min(found, key=lambda one: (one[0], len(one[1])))
    pipelines = tuple(
        Pipeline(stages=one.cut.stages, share=one.share, micro_batches=one.way.micro_batches)
        for one in solutions
    )
    memory = {machine.name: machine.memory_bytes for machine in machines}
    ways = [one.way for one in solutions]
    copies = place_copies(layers, pipelines, ways, memory) if keep_copies else ()
    return Layout(pipelines=pipelines, copies=copies, step_s=step_s), solutions


class _Layouts:
    def __init__(
        self,
        layers: Sequence[Layer],
        machines: Sequence[Machine],
        global_batch: int,
        asked: Asked,
        links: Links,
    ) -> None:
        self._layers, self._machines, self._batch = layers, machines, global_batch
        self._asked, self._links = asked, links
        self._known: dict[tuple[_Block, int, bool], Solution | None] = {}
        self._power = np.array([1 / max(1e-12, _whole_s(machine)) for machine in machines])

    def weigh(
        self, blocks: Sequence[_Block], everybody: bool = False
    ) -> tuple[float, tuple[Solution, ...]] | None:
        """What a step takes with these pipelines, and how they are cut; None where one does not fit."""
        if len(blocks) > self._batch or (self._asked.schedule == "pipedream" and len(blocks) > 1):
            return None  # whose updates are not exact cannot be summed with others'
        power = [float(self._power[list(block)].sum()) for block in blocks]
        shares = [max(1, int(part)) for part in proportional(self._batch, power)]
        shares[int(np.argmax(shares))] += self._batch - sum(shares)
        first = self._all(blocks, shares, everybody)
        if first is None or len(blocks) == 1:
            return None if first is None else (self._step_s(first), first)
        fixed = [one.fixed_s for one in first]
        rates = [max(1e-12, one.sample_s) for one in first]
        better = [int(one) for one in balanced(self._batch, fixed, rates)]
        refined = self._all(blocks, better, everybody)
        best = [one for one in (first, refined) if one is not None]
        return min(((self._step_s(one), one) for one in best), key=lambda pair: pair[0])

    def _all(
        self, blocks: Sequence[_Block], shares: list[int], everybody: bool
    ) -> tuple[Solution, ...] | None:
        found = []
        for block, share in zip(blocks, shares, strict=True):
            if (block, share, everybody) not in self._known:
                self._known[block, share, everybody] = self._solve(block, share, everybody)
            one = self._known[block, share, everybody]
            if one is None or share < 1:
                return None
            found.append(one)
        return tuple(found)

    def _solve(self, block: _Block, share: int, everybody: bool) -> Solution | None:
        asked, some = self._asked, [self._machines[index] for index in block]
        if everybody:
            if asked.stages not in (None, len(block)):
                return None
            asked = msgspec.structs.replace(asked, stages=len(block))
        return solve(self._layers, some, share, asked, links=self._links)

    def _step_s(self, solutions: Sequence[Solution]) -> float:
        return max(one.step_s for one in solutions) + self._exchange_s(solutions)

    def _exchange_s(self, solutions: Sequence[Solution]) -> float:
        """Summing the gradients of the same layers over pipelines, in a ring over the slowest link."""
        if len(solutions) == 1:
            return 0.0
        names = [[stage.machine for stage in one.cut.stages] for one in solutions]
        slowest = min(
            (
                self._links.between(a, b)
                for number, some in enumerate(names)
                for others in names[number + 1 :]
                for a in some
                for b in others
            ),
            key=lambda link: link.bytes_per_s,
        )
        size = sum(layer.parameter_bytes for layer in self._layers)
        rounds = 2 * (len(solutions) - 1)
        return rounds * slowest.time_s(size / len(solutions))


def _whole_s(machine: Machine) -> float:
    return sum(pace.time_s(1) for pace in (*machine.forward, *machine.backward))


def _partitions(count: int) -> Iterator[list[_Block]]:
    """All ways to part 0 … count - 1 into blocks; of many, only into neighbours of like number."""
    if count <= EVERY_PARTITION:
        yield from _every_partition(tuple(range(count)))
        return
    for blocks in range(1, count + 1):
        bounds = [round(index * count / blocks) for index in range(blocks + 1)]
        yield [tuple(range(a, b)) for a, b in itertools.pairwise(bounds)]


def _every_partition(items: _Block) -> Iterator[list[_Block]]:
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for some in _every_partition(rest):
        yield [(first,), *some]
        for index, block in enumerate(some):
            yield [*some[:index], (first, *block), *some[index + 1 :]]


def _misfit(layers: Sequence[Layer], machines: Sequence[Machine], asked: Asked) -> str:
    """Why nothing fits."""
    states = sum(layer.state_bytes for layer in layers)
    most = max(layers, key=lambda layer: layer.state_bytes + layer.saved_bytes)
    room = ", ".join(
        f"{one.name} {_mb(one.memory_bytes)}" if one.memory_bytes is not None else f"{one.name} any"
        for one in machines
    )
    stages = "" if asked.stages is None else f" in {asked.stages} stages"
    return (
        f"the model does not fit{stages}: its {len(layers)} layers need {_mb(states)} for parameters, "
        f"gradients and the optimizer's state, and the largest one, {most.name!r}, "
        f"{_mb(most.state_bytes)} and {_mb(most.saved_bytes)} for each sample; the machines have "
        f"{room}. To do: add machines, lower the global batch, use an optimizer with less state, or "
        "cut that layer into smaller ones"
    )


def _mb(size: float | None) -> str:
    return f"{(size or 0) / 1e6:.1f} MB"
