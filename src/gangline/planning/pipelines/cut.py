# SPDX-License-Identifier: Apache-2.0
"""Where to cut a chain of layers over unlike machines: the best cut there is, by dynamic programming.

What a share of M micro-batches takes is reckoned as

    Σ stages + Σ links there and back + (M - 1)·bottleneck

where a stage costs its forward and backward pass of one micro-batch, and the bottleneck is the slowest
stage, or the slowest link in one direction. The first two sums are what the first micro-batch takes
through an empty pipeline; then one more is done whenever the bottleneck is done with one.

For a given limit on the bottleneck, the least sum is found from the last stage to the first: by then it
is known how many stages are behind a stage, and so how many micro-batches it has in flight and whether
its memory holds them. The limit is lowered as long as that may help.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from gangline.planning.pipelines.memory import in_flight
from gangline.spec.errors import UsageError
from gangline.spec.pipelines import Links, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gangline.planning.pipelines.memory import Way
    from gangline.spec.pipelines import Layer, Machine

Table = NDArray[np.float64]
EVERY_ORDER = 6
"""Up to so many machines, every order of them is tried; more are taken in the order given."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """Stages, and what they cost for one micro-batch."""

    stages: tuple[Stage, ...]
    sum_s: float
    """Of all stages and links: what one micro-batch takes through an empty pipeline."""
    bottleneck_s: float

    def time_s(self, micro_batches: int) -> float:
        """What so many micro-batches take."""
        return self.sum_s + (micro_batches - 1) * self.bottleneck_s


def best_cut(
    layers: Sequence[Layer],
    machines: Sequence[Machine],
    way: Way,
    *,
    links: Links | None = None,
    stages: int | None = None,
) -> Cut | None:
    """The fastest cut over some of these machines, of so many stages; None where none fits memory."""
    if not layers or not machines:
        raise UsageError("a cut needs at least one layer and one machine")
    search = _Search(layers, machines, way, links or Links(), stages=stages)
    best: Cut | None = None
    limit = math.inf
    while (found := search.least_sum(limit)) is not None:
        if best is None or found.time_s(way.micro_batches) < best.time_s(way.micro_batches):
            best = found
        limit = found.bottleneck_s
        # The sum only grows from here on, and some stage has at least its part of the work.
        least = found.sum_s + (way.micro_batches - 1) * search.least_bottleneck_s
        if least >= best.time_s(way.micro_batches):
            break
    return best


class _Search:
    def __init__(
        self,
        layers: Sequence[Layer],
        machines: Sequence[Machine],
        way: Way,
        links: Links,
        *,
        stages: int | None,
    ) -> None:
        self._machines = machines
        self._way = way
        self._count = len(layers)
        self._stages = stages
        self._any_order = len(machines) <= EVERY_ORDER
        self._stage_s = [_stage_seconds(machine, way) for machine in machines]
        self._bytes = _StageBytes(layers, way)
        self._message_s = {
            (a, b): _message_seconds(layers, way, links, machines[a].name, machines[b].name)
            for a in range(len(machines))
            for b in range(len(machines))
            if a != b
        }
        each = [np.diagonal(table, 1) for table in self._stage_s]
        self.least_bottleneck_s = float(np.min(each, axis=0).sum()) / len(machines)

    def least_sum(self, limit: float) -> Cut | None:
        """The cut with the least sum among those whose bottleneck is below the limit."""
        n = self._count
        costs: dict[tuple[int, int], Table] = {}
        choices: dict[tuple[int, int], tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        for key, first, behind, tails in self._states():
            allowed = self._allowed(first, behind=behind, limit=limit)
            best = np.full(n + 1, np.inf)
            at = np.zeros(n + 1, dtype=np.int64)
            via = np.full(n + 1, -1, dtype=np.int64)
            if not tails:
                best, at[:] = allowed[:, n].copy(), n
            for tail_key, second in tails:
                tail = costs.get((tail_key, second))
                if tail is None:
                    continue
                message = self._message_s[first, second]
                there = np.where(message < limit, 2 * message, np.inf)
                total = allowed + (there + tail)[None, :]
                end = total.argmin(axis=1)
                value = total[np.arange(n + 1), end]
                better = value < best
                best, at = np.where(better, value, best), np.where(better, end, at)
                via = np.where(better, tail_key * len(self._machines) + second, via)
            best[n] = np.inf
            costs[key, first], choices[key, first] = best, (at, via)
        ends = [
            (costs[key, first][0], key, first)
            for key, first in costs
            if self._stages is None or self._size(key) == self._stages
        ]
        if not ends:
            return None
        value, key, first = min(ends)
        return None if not math.isfinite(value) else self._unwind(key, first, choices)

    def _states(self) -> Iterator[tuple[int, int, int, list[tuple[int, int]]]]:
        """Who may be the first of some last stages: key, machine, stages behind it, and what follows.

        The key is the set of machines used, or how many where their order is given.
        """
        count = len(self._machines)
        if self._any_order:
            for key in sorted(range(1, 1 << count), key=int.bit_count):
                for first in range(count):
                    if key >> first & 1:
                        rest = key & ~(1 << first)
                        tails = [(rest, other) for other in range(count) if rest >> other & 1]
                        yield key, first, key.bit_count() - 1, tails
            return
        for size in range(1, count + 1):
            for first in range(count):
                yield size, first, size - 1, [(size - 1, o) for o in range(first + 1, count)]

    def _size(self, key: int) -> int:
        return key.bit_count() if self._any_order else key

    def _allowed(self, machine: int, *, behind: int, limit: float) -> Table:
        """The seconds of every stage start … stop of a machine; infinite where it may not be."""
        seconds = self._stage_s[machine]
        memory = self._machines[machine].memory_bytes
        is_good = seconds < limit
        if memory is not None:
            is_good &= self._bytes.table(behind) <= memory
        return np.where(is_good, seconds, np.inf)

    def _unwind(
        self,
        key: int,
        first: int,
        choices: dict[tuple[int, int], tuple[NDArray[np.int64], NDArray[np.int64]]],
    ) -> Cut:
        stages: list[Stage] = []
        start, total, bottleneck = 0, 0.0, 0.0
        while True:
            at, via = choices[key, first]
            stop, following = int(at[start]), int(via[start])
            seconds = float(self._stage_s[first][start, stop])
            total, bottleneck = total + seconds, max(bottleneck, seconds)
            stages.append(Stage(machine=self._machines[first].name, start=start, stop=stop))
            if stop == self._count:
                return Cut(stages=tuple(stages), sum_s=total, bottleneck_s=bottleneck)
            key, second = divmod(following, len(self._machines))
            message = float(self._message_s[first, second][stop])
            total, bottleneck = total + 2 * message, max(bottleneck, message)
            start, first = stop, second


def _stage_seconds(machine: Machine, way: Way) -> Table:
    """Entry [i, j]: a forward and a backward pass of one micro-batch through the layers i … j - 1."""
    forward = np.array([pace.time_s(way.samples) for pace in machine.forward])
    backward = np.array([pace.time_s(way.samples) for pace in machine.backward])
    each = forward * (2 if way.recompute else 1) + backward
    sums = np.concatenate([[0.0], np.cumsum(each)])
    table: Table = sums[None, :] - sums[:, None]
    table[np.tril_indices(len(sums))] = np.inf  # a stage has at least one layer
    return table


class _StageBytes:
    """Entry [i, j]: the memory of a stage of the layers i … j - 1, as `stage_bytes` has it."""

    def __init__(self, layers: Sequence[Layer], way: Way) -> None:
        self._way = way
        self._saved = _between([layer.saved_bytes for layer in layers])
        self._states = _between([layer.state_bytes for layer in layers])
        self._parameters = _between([layer.parameter_bytes for layer in layers])
        self._into = np.array([*(layer.input_bytes for layer in layers), 0.0])[:, None]
        self._out = np.array([0.0, *(layer.output_bytes for layer in layers)])[None, :]

    def table(self, behind: int) -> Table:
        number = in_flight(self._way, behind=behind)
        is_again = self._way.recompute
        kept = number * self._into + self._saved if is_again else number * self._saved
        states = self._states
        if self._way.schedule == "pipedream":
            states = 2 * states + number * self._parameters
        total: Table = states + self._way.samples * (kept + 2 * (self._into + self._out))
        return total


def _between(values: list[float]) -> Table:
    sums = np.concatenate([[0.0], np.cumsum(values)])
    table: Table = sums[None, :] - sums[:, None]
    return table


def _message_seconds(
    layers: Sequence[Layer], way: Way, links: Links, first: str, second: str
) -> Table:
    """Entry j: what one micro-batch's activations take, where the cut is before layer j."""
    link = links.between(first, second)
    sizes = [0.0, *(layer.output_bytes for layer in layers)]
    return np.array([link.time_s(way.samples * size) for size in sizes])
