# SPDX-License-Identifier: Apache-2.0
"""The allocation policies by name."""

from __future__ import annotations

import numpy as np
import pytest

from gangline.planning.allocation.policies import ALLOCATIONS, AllocationProblem, allocate
from gangline.spec.errors import UsageError


def problem(**change) -> AllocationProblem:
    fields = {
        "global_batch": 256,
        "fixed_s": np.zeros(4),
        "per_sample_s": np.array([1.0, 2.0, 5.0, 10.0]),
        "operations_per_s": np.array([10.0, 5.0, 2.0, 1.0]),
        "memory_bytes": np.full(4, 1e9),
        "latency_s": np.full(4, 1e-3),
        "weights": np.array([3.0, 3.0, 1.0, 1.0]),
        "max_samples": np.full(4, 256),
        "minimum": 1,
    }
    return AllocationProblem(**{**fields, **change})


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("balanced", [143, 71, 28, 14]),
        ("equal", [64, 64, 64, 64]),
        ("fixed", [96, 96, 32, 32]),
        ("kqv", [49, 43, 39, 38]),
        ("kqv-normalised", [74, 65, 59, 58]),
    ],
)
def test_each_policy_cuts_an_uneven_cluster_its_own_way(name, shares):
    assert allocate(name, problem(), rng=np.random.default_rng(0)).tolist() == shares


@pytest.mark.parametrize("name", sorted(ALLOCATIONS))
def test_every_policy_keeps_the_limits_when_there_are_any(name):
    limits = np.array([60, 80, 90, 100])
    shares = allocate(name, problem(max_samples=limits, minimum=40), rng=np.random.default_rng(1))
    assert ((shares >= 40) & (shares <= limits)).all()
    if name != "kqv":
        assert shares.sum() == 256


def test_random_follows_its_generator():
    first, second, other = (
        allocate("random", problem(), rng=np.random.default_rng(seed)).tolist()
        for seed in (1, 1, 2)
    )
    assert first == second != other
    assert sum(first) == 256


def test_the_message_lists_the_policies_when_the_name_is_unknown():
    with pytest.raises(
        UsageError, match=r"no allocation 'balance'; .*kqv-normalised.*'balanced'\?"
    ):
        allocate("balance", problem(), rng=np.random.default_rng(0))
    with pytest.raises(UsageError, match=r"there are [^;]*$"):
        allocate("zzz", problem(), rng=np.random.default_rng(0))
