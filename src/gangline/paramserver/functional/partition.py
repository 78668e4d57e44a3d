# SPDX-License-Identifier: Apache-2.0
"""Which rows each worker has. Every row is somebody's: parts differ by one row at most."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gangline.local.table import Indices


def partition(scheme: str, *, rows: int, workers: int, seed: int) -> list[Indices]:
    """The rows of each worker, in the order in which it uses them."""
    every = np.arange(rows, dtype=np.int64)
    match scheme:
        case "disjoint_contiguous":
            return np.array_split(every, workers)
        case "disjoint_round_robin":
            return [every[worker::workers] for worker in range(workers)]
        case "disjoint_random":
            return np.array_split(np.random.default_rng(seed).permutation(every), workers)
        case "overlap_reshuffle":
            return [
                np.random.default_rng([seed, worker]).permutation(every)
                for worker in range(workers)
            ]
        case _:
            raise ValueError(f"{scheme!r} is no scheme")
