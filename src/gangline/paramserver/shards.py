# SPDX-License-Identifier: Apache-2.0
"""Which shard holds which parameters. Pure, so that all workers come to the same answer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


def assign(sizes: Sequence[int], weights: Sequence[float]) -> tuple[tuple[int, ...], ...]:
    """The indices of the parameters that each shard holds, so that size over weight is even.

    The largest goes first, to the shard that is the least full with it. Every shard gets something.
    """
    _check(sizes, weights)
    held: list[list[int]] = [[] for _ in weights]
    loads = [0] * len(weights)
    order = sorted(range(len(sizes)), key=lambda index: (-sizes[index], index))
    for place, index in enumerate(order):
        empty = [shard for shard, indices in enumerate(held) if not indices]
        # The last ones go to those that have nothing yet.
        choice = empty if len(order) - place == len(empty) else range(len(weights))
        size = sizes[index]
        best = min(choice, key=lambda shard: ((loads[shard] + size) / weights[shard], shard))
        held[best].append(index)
        loads[best] += size
    return tuple(tuple(sorted(indices)) for indices in held)


def _check(sizes: Sequence[int], weights: Sequence[float]) -> None:
    if not weights:
        raise UsageError("parameters are given to at least one shard, not to none")
    for shard, weight in enumerate(weights):
        if not (math.isfinite(weight) and weight > 0):
            raise UsageError(f"the weight of shard {shard} must be above 0, not {weight}")
    for index, size in enumerate(sizes):
        if size < 0:
            raise UsageError(f"the size of parameter {index} must be at least 0, not {size}")
    if len(sizes) < len(weights):
        raise UsageError(
            f"{len(weights)} shards for {len(sizes)} parameters: each holds at least one whole "
            f"parameter; ask for at most {len(sizes)} servers"
        )
