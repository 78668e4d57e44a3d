# SPDX-License-Identifier: Apache-2.0
"""A node of the job of `loops_overhead.py`."""

from __future__ import annotations

import time

import torch

import gangline
from gangline.worker.job import job
from loops_work import nothing


def node(chunks: int, repeats: int) -> list[tuple[float, float]]:
    """A worker of a job: of each round, microseconds per range that it pulled, and there and back."""
    gangline.init()
    found = []
    for _ in range(repeats):
        back_us = _there_and_back_us(chunks)
        begun = time.perf_counter()
        made = gangline.reduce(
            nothing, range(chunks), scheme="SS", where="job", workers=1, details=True
        )
        took = time.perf_counter() - begun
        own = made.chunks_of[gangline.rank()]
        found.append((took / max(own, 1) * 1e6, back_us))
    return found


def _there_and_back_us(count: int) -> float:
    """A small message between the first two workers, over the group that all have."""
    group = job.opened().group
    said = torch.zeros(1, dtype=torch.int64)
    begun = time.perf_counter()
    for _ in range(count):
        if group.rank == 0:
            group.receive(said, source=1)
            group.send(said, to=1)
        else:
            group.send(said, to=0)
            group.receive(said, source=0)
    return (time.perf_counter() - begun) / count * 1e6
