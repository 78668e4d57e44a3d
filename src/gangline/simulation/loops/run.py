# SPDX-License-Identifier: Apache-2.0
"""Runs one loop in virtual time."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from gangline.scheduling.measures import imbalance
from gangline.scheduling.queues import cut_blocks

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


class _Running(NamedTuple):
    chunk: Chunk
    begin_s: float
    overhead_s: float


def run_loop(
    costs: Costs, source: Source, crowd: Crowd, *, remote: float = 0.0, seed: int = 0
) -> LoopResult:
    """All items of `costs` by the workers of `crowd`, whose speeds are drawn with `seed`.

    The loop's data lie in contiguous blocks, one for each group, as large as it has workers;
    elsewhere an item takes `remote` longer.
    """
    work = [0.0, *np.cumsum(costs).tolist()]
    homes = _homes(len(costs), crowd)
    paces, groups = crowd.paces(seed), crowd.group_of
    ready = [(0.0, worker) for worker in range(len(paces))]
    running: dict[int, _Running] = {}
    ends = [0.0] * len(paces)
    records: list[ChunkRecord] = []
    tell_end = getattr(source, "tell_end", None)
    steals, overhead_s, far_items = 0, 0.0, 0
    while ready:
        now, worker = heapq.heappop(ready)
        if worker in running:
            chunk, begin_s, cost_s = running.pop(worker)
            if tell_end is not None:
                tell_end(worker, now)
            source.finished(worker, chunk, now - begin_s, cost_s)
            records.append(ChunkRecord(chunk.start, chunk.stop, worker, now - begin_s))
        grant = source.take(worker, now)
        if grant is None:
            ends[worker] = now
            continue
        chunk = grant.chunk
        low, high = homes[groups[worker]]
        outside = chunk.size - max(0, min(high, chunk.stop) - max(low, chunk.start))
        cost = work[chunk.stop] - work[chunk.start]
        cost *= 1 + remote * outside / chunk.size
        running[worker] = _Running(chunk, grant.begin_s, grant.begin_s - now)
        heapq.heappush(ready, (paces[worker].finish(grant.begin_s, cost), worker))
        steals += grant.is_stolen
        overhead_s += grant.begin_s - now
        far_items += outside
    return LoopResult(
        time_s=max(ends),
        imbalance=imbalance(ends),
        chunks=len(records),
        steals=steals,
        overhead_s=overhead_s,
        remote_items=far_items,
        records=records,
    )


def _homes(total: int, crowd: Crowd) -> dict[int, tuple[int, int]]:
    groups = list(dict.fromkeys(crowd.group_of))
    sizes = [float(crowd.group_of.count(group)) for group in groups]
    return dict(zip(groups, cut_blocks(total, sizes), strict=True))
