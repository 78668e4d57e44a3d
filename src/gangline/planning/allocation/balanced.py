# SPDX-License-Identifier: Apache-2.0
"""The allocation that lets all workers finish together, as nearly as whole samples allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gangline.planning.allocation.bounds import fit_bounds
from gangline.planning.allocation.water import water_level
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

    from gangline.planning.allocation.bounds import Floats, Shares


def balanced(
    total: int,
    fixed_s: ArrayLike,
    per_sample_s: ArrayLike,
    *,
    minimum: ArrayLike = 1,
    maximum: ArrayLike | None = None,
) -> Shares:
    """The whole numbers nᵢ that minimise the time of the slowest worker.

        minimise   maxᵢ (aᵢ + bᵢ·nᵢ)
        subject to Σᵢ nᵢ = total,  minimumᵢ ≤ nᵢ ≤ maximumᵢ,  nᵢ whole

    with aᵢ = `fixed_s`, the cost of a step however small, and bᵢ = `per_sample_s` > 0. `minimum`
    and `maximum` (memory ceilings; None: no ceiling) are one number for all or one per worker.

    The real-valued optimum is the water level T of nᵢ(T) = clip((T − aᵢ)/bᵢ, minimumᵢ, maximumᵢ).
    Rounded down, these shares leave a few samples over, and each of those goes to the worker that
    would be done with it first. That is optimal: the samples that could be done before the last one
    handed out are all handed out, and they are fewer than `total`. A worker whose fixed cost alone
    is above T gets its minimum and no more, and a faster worker never gets less than a slower one.

    A `total` below the sum of the minimums goes to the workers that are fastest at their minimum,
    as many as it feeds; the others get 0.
    """
    fixed, per_sample = _costs(fixed_s, per_sample_s)
    at_minimum = fixed + per_sample * np.asarray(minimum)
    least, most = fit_bounds(total, minimum=minimum, maximum=maximum, cost=at_minimum)
    if least.sum() == total:
        return least
    level = water_level(total, floor=fixed, rate=1 / per_sample, least=least, most=most)

    def done_by(time: float) -> Shares:
        whole = np.floor((time - fixed) / per_sample)
        return np.clip(whole, least, most).astype(np.int64)

    below, above = _bracket(total, level, done_by=done_by, width=float(per_sample.min()))
    return _hand_out_rest(total, below, room=above - below, fixed=fixed, per_sample=per_sample)


def slowest_s(shares: ArrayLike, fixed_s: ArrayLike, per_sample_s: ArrayLike) -> float:
    """The step time of the slowest worker: maxᵢ (aᵢ + bᵢ·nᵢ)."""
    return float(np.max(np.asarray(fixed_s) + np.asarray(per_sample_s) * np.asarray(shares)))


def _bracket(
    total: int, level: float, *, done_by: Callable[[float], Shares], width: float
) -> tuple[Shares, Shares]:
    """What is done by two times around `level`: at most `total`, and at least `total`.

    They are so close that no worker's shares differ by more than one, unless two neighbouring
    floating-point numbers are still too far apart: then it makes no difference who gets how many.
    """
    low = high = level
    while done_by(low).sum() > total:
        low, width = low - width, width * 2
    while done_by(high).sum() < total:
        high, width = high + width, width * 2
    below, above = done_by(low), done_by(high)
    while (above - below).max() > 1 and low < (middle := (low + high) / 2) < high:
        between = done_by(middle)
        if between.sum() <= total:
            low, below = middle, between
        else:
            high, above = middle, between
    return below, above


def _hand_out_rest(
    total: int, below: Shares, *, room: Shares, fixed: Floats, per_sample: Floats
) -> Shares:
    """Gives what is left of `total` to the workers that finish one more sample first.

    Ties go to the lower cost per sample, so that the result depends on speeds before positions.
    """
    free = np.flatnonzero(room)
    next_s = fixed[free] + per_sample[free] * (below[free] + 1)
    order = free[np.lexsort((fixed[free], per_sample[free], next_s))]
    taken_before = np.cumsum(room[order]) - room[order]
    shares = below.copy()
    shares[order] += np.clip(total - below.sum() - taken_before, 0, room[order])
    return shares


def _costs(fixed_s: ArrayLike, per_sample_s: ArrayLike) -> tuple[Floats, Floats]:
    fixed, per_sample = np.broadcast_arrays(
        np.atleast_1d(np.asarray(fixed_s, dtype=np.float64)),
        np.atleast_1d(np.asarray(per_sample_s, dtype=np.float64)),
    )
    bad = ~(np.isfinite(fixed) & np.isfinite(per_sample) & (fixed >= 0) & (per_sample > 0))
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        raise UsageError(
            f"worker {i} has the step time {fixed[i]} + {per_sample[i]}·n seconds; the fixed part "
            "must be 0 or more, the part per sample above 0, both finite"
        )
    # A sample that costs less than this is lost in the rounding of the step time.
    least_cost = 1e-12 * (fixed.max(initial=0) + per_sample.max(initial=0))
    return fixed, np.maximum(per_sample, least_cost)
