# SPDX-License-Identifier: Apache-2.0
"""Allocations in proportion to given weights, rounded by largest remainder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gangline.planning.allocation.bounds import fit_bounds
from gangline.planning.allocation.water import water_level
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from gangline.planning.allocation.bounds import Floats, Shares


_LEAST_WEIGHT = 1e-9
"""Relative to the greatest; a lighter one counts as this, which is 0 samples but for ceilings."""


def proportional(
    total: int,
    weights: ArrayLike,
    *,
    minimum: ArrayLike = 0,
    maximum: ArrayLike | None = None,
) -> Shares:
    """Whole shares of `total` in proportion to `weights`, which may be in any unit.

        xᵢ = clip(λ·weightsᵢ, minimumᵢ, maximumᵢ)  with λ such that Σᵢ xᵢ = total

    Each xᵢ is rounded down, and the samples left over go, one each, to the largest remainders (on a
    tie to the heavier weight, then to the lower position). A `total` below the sum of the minimums
    goes to the heaviest workers, as many as it feeds; the others get 0.
    """
    weight = _weights(weights)
    least, most = fit_bounds(total, minimum=minimum, maximum=maximum, cost=-weight)
    if least.sum() == total:
        return least
    reach = int(np.where(weight > 0, most, least).sum())
    if reach < total:
        raise UsageError(
            f"a batch of {total} samples does not fit: the workers with a weight above 0 can hold "
            f"at most {reach} with the minimums of the others; give more workers a weight"
        )
    level = water_level(total, floor=np.zeros_like(weight), rate=weight, least=least, most=most)
    exact = np.clip(level * weight, least, most)
    # A quotient that is whole but for rounding must count as whole.
    shares = np.floor(exact + 1e-9).astype(np.int64)
    order = np.lexsort((-weight, -(exact - shares)))
    shares[order[: total - int(shares.sum())]] += 1
    return shares


def equal(
    total: int, count: int, *, minimum: ArrayLike = 0, maximum: ArrayLike | None = None
) -> Shares:
    """`total` in `count` shares that differ by one at most, but for minimums and ceilings."""
    return proportional(total, np.ones(count), minimum=minimum, maximum=maximum)


def drawn(
    total: int,
    count: int,
    *,
    rng: np.random.Generator,
    minimum: ArrayLike = 0,
    maximum: ArrayLike | None = None,
) -> Shares:
    """`total` cut at random, every split of the whole being as likely as any other."""
    weights = rng.standard_exponential(count)
    return proportional(total, weights, minimum=minimum, maximum=maximum)


def _weights(weights: ArrayLike) -> Floats:
    weight = np.atleast_1d(np.asarray(weights, dtype=np.float64))
    bad = np.flatnonzero(~(np.isfinite(weight) & (weight >= 0)))
    if len(bad):
        i = int(bad[0])
        raise UsageError(f"worker {i} has the weight {weight[i]}; weights are finite and 0 or more")
    if not len(weight):
        return weight
    if not weight.any():
        raise UsageError(f"the weights of all {len(weight)} workers are 0; one must be above 0")
    relative = weight / weight.max()
    return np.where(relative > 0, np.maximum(relative, _LEAST_WEIGHT), 0.0)
