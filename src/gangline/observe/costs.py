# SPDX-License-Identifier: Apache-2.0
"""How long a worker computes for n samples, as a run shows it, and the best to be made of it.

A worker's cost is modelled as `fixed_s + per_sample_s * n`. The compute-only optimum of a batch of
N samples is the smallest T for which there are shares that everybody finishes within T, if
exchanging and waiting cost nothing:

    T* = min over shares n_i >= 0, sum n_i = N, of  max_i (fixed_i + per_sample_i * n_i)

Shares are real numbers here. Where every fixed part is 0, T* = N / sum(1 / per_sample_i).
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

_MIN_STEPS = 5
_MIN_SPREAD = 1.5
_SHORTEST_S = 1e-9
"""No computing is shorter; a worker that took no time would make any optimum 0."""


class WorkerCost(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of computing: `fixed_s + per_sample_s * samples`."""

    fixed_s: float
    per_sample_s: float
    is_fitted: bool
    """Whether the fixed part could be told from the rest; otherwise it is in `per_sample_s`."""

    def compute_s(self, samples: float) -> float:
        """How long that many samples take."""
        return self.fixed_s + self.per_sample_s * samples


def fit_cost(observations: Sequence[tuple[int, float]]) -> WorkerCost | None:
    """The cost that explains (samples, compute_s) pairs; None where there is nothing to see.

    The fixed part can be told apart only if the worker had shares of different size: at least
    five steps each with shares that differ by half. The slope is then the median of the slopes
    between the medians of all such pairs of sizes, which single slow steps do not move.
    """
    by_samples: dict[int, list[float]] = {}
    for samples, compute_s in observations:
        if samples > 0 and compute_s >= _SHORTEST_S:
            by_samples.setdefault(samples, []).append(compute_s)
    if not by_samples:
        return None
    points = sorted(
        (n, median(times)) for n, times in by_samples.items() if len(times) >= _MIN_STEPS
    )
    slopes = [
        (late_s - early_s) / (late - early)
        for i, (early, early_s) in enumerate(points)
        for late, late_s in points[i + 1 :]
        if late >= _MIN_SPREAD * early
    ]
    if slopes and median(slopes) > 0:
        slope = median(slopes)
        fixed = median([time - slope * n for n, time in points])
        if fixed >= 0:
            return WorkerCost(fixed_s=fixed, per_sample_s=slope, is_fitted=True)
    rates = [time / n for n, times in by_samples.items() for time in times]
    return WorkerCost(fixed_s=0.0, per_sample_s=median(rates), is_fitted=False)


def optimum_s(costs: Sequence[WorkerCost], samples: float) -> float:
    """T*: the compute-only optimum for a batch of so many samples; 0 for none.

    Workers join in the order of their fixed parts, as long as they can finish anything in T.
    """
    best = 0.0
    capacity = offset = 0.0
    for cost in sorted(costs, key=lambda cost: cost.fixed_s):
        if capacity and best <= cost.fixed_s:
            break
        capacity += 1 / cost.per_sample_s
        offset += cost.fixed_s / cost.per_sample_s
        best = (samples + offset) / capacity
    return best if samples > 0 else 0.0
