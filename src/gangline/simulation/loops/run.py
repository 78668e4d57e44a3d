# SPDX-License-Identifier: Apache-2.0
"""Runs one loop in virtual time."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.scheduling.measures import imbalance
from gangline.scheduling.queues import cut_blocks
from gangline.simulation.loops.sources import Done

if TYPE_CHECKING:
    from gangline.scheduling import Chunk
    from gangline.simulation.loops.crowd import Crowd
    from gangline.simulation.loops.sources import Source
    from gangline.simulation.loops.workloads import Costs


class ChunkRecord(msgspec.Struct, frozen=True):
    """A chunk that was done: a line of a recording."""

    start: int
    stop: int
    worker: int
    seconds: float


class LoopResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a loop."""

    time_s: float
    """Until the last worker is done."""
    imbalance: float
    """(T_max − T_mean)/T_max · P/(P − 1) of when each worker is done: 0 is even, 1 the worst."""
    chunks: int
    steals: int
    overhead_s: float
    """What all workers together spent on getting chunks."""
    remote_items: int
    """How many were done outside of the group where their data lie."""
    records: list[ChunkRecord] = []


def run_loop(
    costs: Costs, source: Source, crowd: Crowd, *, remote: float = 0.0, seed: int = 0
) -> LoopResult:
    """All items of `costs` by the workers of `crowd`, whose speeds are drawn with `seed`.

    The loop's data lie in contiguous blocks, one for each group, as large as it has workers;
    elsewhere an item takes `remote` longer.
    """
    work = _Work(costs, crowd, remote)
    paces = crowd.paces(seed)
    ready = [(0.0, worker) for worker in range(len(paces))]
    running: dict[int, Done] = {}
    done: list[tuple[int, Done]] = []
    ends, steals = [0.0] * len(paces), 0
    while ready:
        now, worker = heapq.heappop(ready)
        if worker in running:
            last = running.pop(worker)
            source.finished(worker, last)
            done.append((worker, last))
        grant = source.take(worker, now)
        if grant is None:
            ends[worker] = now
            continue
        end_s = paces[worker].finish(grant.begin_s, work.cost_s(worker, grant.chunk))
        running[worker] = Done(grant.chunk, now, grant.begin_s, end_s)
        heapq.heappush(ready, (end_s, worker))
        steals += grant.is_stolen
    return LoopResult(
        time_s=max(ends),
        imbalance=imbalance(ends),
        chunks=len(done),
        steals=steals,
        overhead_s=sum(one.begin_s - one.asked_s for _, one in done),
        remote_items=sum(work.outside(worker, one.chunk) for worker, one in done),
        records=[
            ChunkRecord(one.chunk.start, one.chunk.stop, worker, one.end_s - one.begin_s)
            for worker, one in done
        ],
    )


class _Work:
    """What chunks cost whom."""

    def __init__(self, costs: Costs, crowd: Crowd, remote: float) -> None:
        self._sums: list[float] = [0.0, *np.cumsum(costs).tolist()]
        self._remote = remote
        groups = list(dict.fromkeys(crowd.group_of))
        sizes = [float(crowd.group_of.count(group)) for group in groups]
        blocks = dict(zip(groups, cut_blocks(len(costs), sizes), strict=True))
        self._homes = [blocks[group] for group in crowd.group_of]

    def cost_s(self, worker: int, chunk: Chunk) -> float:
        """On a worker of speed 1."""
        cost_s = self._sums[chunk.stop] - self._sums[chunk.start]
        return cost_s * (1 + self._remote * self.outside(worker, chunk) / chunk.size)

    def outside(self, worker: int, chunk: Chunk) -> int:
        """How many of its items have their data in another group than the worker's."""
        low, high = self._homes[worker]
        return chunk.size - max(0, min(high, chunk.stop) - max(low, chunk.start))
