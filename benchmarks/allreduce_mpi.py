# SPDX-License-Identifier: Apache-2.0
"""The MPI worker of `allreduce.py`: needs numpy and mpi4py only, and is started by `mpiexec`.

The first process reads the requests and tells the others; it answers for all.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from mpi4py import MPI

from teams import serve


def median_s(request: dict[str, Any]) -> float:
    """The slowest worker's median time of an all-reduce."""
    world = MPI.COMM_WORLD
    array = np.zeros(request["bytes"] // 4, dtype=np.float32)
    world.Allreduce(MPI.IN_PLACE, array)
    times = []
    for _ in range(request["calls"]):
        started = time.perf_counter()
        world.Allreduce(MPI.IN_PLACE, array)
        times.append(time.perf_counter() - started)
    return float(world.allreduce(statistics.median(times), op=MPI.MAX))


def answer(request: dict[str, Any]) -> float:
    announce(request)
    return median_s(request)


def announce(request: dict[str, Any] | None) -> None:
    """The others sleep until they are needed: an idle MPI process would poll."""
    world = MPI.COMM_WORLD
    for peer in range(1, world.size):
        world.send(request, dest=peer)


def follow() -> None:
    """What all processes but the first do."""
    world = MPI.COMM_WORLD
    while True:
        while not world.iprobe(source=0):
            time.sleep(0.01)
        request = world.recv(source=0)
        if request is None:
            return
        median_s(request)


if __name__ == "__main__":
    if MPI.COMM_WORLD.rank == 0:
        serve(answer)
        announce(None)
    else:
        follow()
