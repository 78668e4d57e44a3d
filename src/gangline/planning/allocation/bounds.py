# SPDX-License-Identifier: Apache-2.0
"""The limits of every allocation: how few and how many samples each worker may get."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gangline.spec.errors import UsageError

Shares: TypeAlias = NDArray[np.int64]
"""Samples of the global batch per worker."""
Floats: TypeAlias = NDArray[np.float64]
"""One real number per worker."""


def fit_bounds(
    total: int, *, minimum: ArrayLike, maximum: ArrayLike | None, cost: Floats
) -> tuple[Shares, Shares]:
    """The least and the greatest share of each worker, such that `total` samples fit between.

    A ceiling below the minimum holds: what does not fit into memory cannot be computed.
    Where `total` is too small to give everybody the minimum, the workers with the lowest `cost`
    take part, as many as the minimum allows, and the others get nothing. The first of them takes
    part in any case, even where `total` alone is below its minimum: the samples must go somewhere.
    """
    count = len(cost)
    if count == 0:
        raise UsageError("shares need at least one worker, and there is none")
    if total < 0:
        raise UsageError(f"the batch to share must not be negative, but is {total}")
    least = np.array(np.broadcast_to(np.asarray(minimum, dtype=np.int64), count))
    limit = max(total, int(least.max())) if maximum is None else maximum
    most = np.array(np.broadcast_to(np.asarray(limit, dtype=np.int64), count))
    _check_each(least, most)
    least = np.minimum(least, most)
    if least.sum() > total:
        order = np.argsort(cost, kind="stable")
        out = order[np.cumsum(least[order]) > total]
        if len(out) == count:
            least[order[0]], out = 0, order[1:]
        least[out], most[out] = 0, 0
    if most.sum() < total:
        raise UsageError(
            f"a batch of {total} samples does not fit: the workers that take part can hold at most "
            f"{_sum_text(most)}; lower the global batch, or raise the ceilings"
        )
    return least, most


def _check_each(least: Shares, most: Shares) -> None:
    wrong = np.flatnonzero((least < 0) | (most < 0))
    if len(wrong):
        i = int(wrong[0])
        raise UsageError(
            f"worker {i} must get at least {least[i]} and at most {most[i]} samples, which cannot "
            "be; neither may be negative"
        )


def _sum_text(values: Shares) -> str:
    parts = values[values > 0].tolist()
    if len(parts) <= 8:
        return f"{' + '.join(map(str, parts))} = {sum(parts)}"
    return f"{sum(parts)} in all"
