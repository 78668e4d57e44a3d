# SPDX-License-Identifier: Apache-2.0
"""What the items of a loop cost: eight kinds of loops that people have. The mean cost is given."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gangline.spec.errors import UsageError
from gangline.spec.hints import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Costs: TypeAlias = NDArray[np.float64]
"""Seconds of each item, on a worker of speed 1."""


def _uniform(count: int, rng: np.random.Generator) -> Costs:
    return np.ones(count)


def _decreasing(count: int, rng: np.random.Generator) -> Costs:
    return np.linspace(2.0, 0.02, count)


def _increasing(count: int, rng: np.random.Generator) -> Costs:
    return np.linspace(0.02, 2.0, count)


def _heavy_tailed(count: int, rng: np.random.Generator) -> Costs:
    return np.minimum(rng.pareto(1.8, count) + 0.1, 30.0)


def _bursts(count: int, rng: np.random.Generator) -> Costs:
    costs = np.full(count, 0.3)
    length = max(1, count // 40)
    for start in rng.integers(0, count, 6):
        costs[start : start + length] = 5.0
    return costs


def _sparse_rows(count: int, rng: np.random.Generator) -> Costs:
    filled = np.minimum(rng.zipf(1.7, count), 200).astype(np.float64)
    return 0.05 + filled * (rng.random(count) < 0.5)


def _sorted_by_size(count: int, rng: np.random.Generator) -> Costs:
    return np.sort(rng.lognormal(0.0, 1.0, count))[::-1].copy()


def _image_sizes(count: int, rng: np.random.Generator) -> Costs:
    return rng.choice(np.array([0.25, 1.0, 2.25, 6.0]), count, p=[0.4, 0.35, 0.15, 0.1])


WORKLOADS: Mapping[str, Callable[[int, np.random.Generator], Costs]] = MappingProxyType(
    {
        "uniform": _uniform,
        "decreasing": _decreasing,
        "increasing": _increasing,
        "heavy-tailed": _heavy_tailed,
        "bursts": _bursts,
        "sparse-rows": _sparse_rows,
        "sorted-by-size": _sorted_by_size,
        "image-sizes": _image_sizes,
    }
)
"""The kinds of loops, by name."""


def make_workload(name: str, count: int, *, mean_s: float = 1e-3, seed: int = 0) -> Costs:
    """The costs of `count` items. Raises UsageError with the kinds that there are."""
    if name not in WORKLOADS:
        hint = did_you_mean(name, WORKLOADS)
        raise UsageError(f"no workload {name!r}; there are {', '.join(WORKLOADS)}{hint}")
    if count == 0:
        return np.zeros(0)
    costs: Costs = WORKLOADS[name](count, np.random.default_rng(seed))
    costs *= mean_s / costs.mean()
    return costs
