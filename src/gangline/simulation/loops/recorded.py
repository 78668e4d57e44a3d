# SPDX-License-Identifier: Apache-2.0
"""A loop that was really done, from the times of its chunks: lines of JSON, one for each chunk.

{"start": 0, "stop": 120, "worker": 3, "seconds": 0.031}

A worker's speed is its items per second beside the fastest, unless speeds are given. The time of a
chunk is spread evenly over its items: what differs within a chunk is lost, so that schemes with
smaller chunks than the recording's look a little better than they are.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.simulation.loops.run import ChunkRecord
from gangline.spec.errors import LogError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gangline.simulation.loops.workloads import Costs


def read_records(lines: Iterable[bytes | str], *, path: str = "recording") -> list[ChunkRecord]:
    """The chunks, in the order of their items. Raises LogError with the line that is wrong."""
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = msgspec.json.decode(line, type=ChunkRecord)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise LogError(
                f"{path}, line {number}: {error}; each line must have start, stop, worker, seconds"
            ) from error
        if not (
            0 <= record.start < record.stop and record.worker >= 0 and _is_time(record.seconds)
        ):
            raise LogError(f"{path}, line {number}: {record} cannot be a chunk that was done")
        records.append(record)
    records.sort(key=lambda one: one.start)
    _check_complete(records, path=path)
    return records


def estimated_speeds(records: Sequence[ChunkRecord]) -> tuple[float, ...]:
    """Of each worker from 0 on; the fastest has 1, and who did nothing is as fast as it."""
    items: defaultdict[int, int] = defaultdict(int)
    seconds: defaultdict[int, float] = defaultdict(float)
    for record in records:
        items[record.worker] += record.stop - record.start
        seconds[record.worker] += record.seconds
    rates = {worker: items[worker] / seconds[worker] for worker in items if seconds[worker] > 0}
    fastest = max(rates.values(), default=1.0)
    return tuple(rates.get(worker, fastest) / fastest for worker in range(max(items) + 1))


def recorded_costs(records: Sequence[ChunkRecord], speeds: Sequence[float]) -> Costs:
    """What each item costs on a worker of speed 1. Raises UsageError where a speed is missing."""
    last = max(record.worker for record in records)
    if last >= len(speeds):
        raise UsageError(f"{len(speeds)} speeds, but worker {last} is in the recording: give all")
    costs = np.zeros(records[-1].stop)
    for record in records:
        each = record.seconds * speeds[record.worker] / (record.stop - record.start)
        costs[record.start : record.stop] = each
    return costs


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds >= 0


def _check_complete(records: list[ChunkRecord], *, path: str) -> None:
    if not records:
        raise LogError(f"{path} has no chunks; each line must have start, stop, worker, seconds")
    so_far = 0
    for record in records:
        if record.start != so_far:
            what = "missing" if record.start > so_far else "there twice"
            low, high = sorted((record.start, so_far))
            raise LogError(
                f"{path}: the items {low} to {high - 1} are {what}; all must be there once"
            )
        so_far = record.stop
