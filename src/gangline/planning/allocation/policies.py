# SPDX-License-Identifier: Apache-2.0
"""How the global batch is cut: the policies by name.

    problem = AllocationProblem(global_batch=256, fixed_s=a, per_sample_s=b, minimum=1)
    shares = allocate("balanced", problem, rng=np.random.default_rng(0))

Each policy is a pure function of what is known about the workers. Those that the papers describe
are here as choices and as baselines of `balanced`, the default.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import msgspec
import numpy as np

from gangline.planning.allocation.balanced import balanced as balanced
from gangline.planning.allocation.balanced import slowest_s as slowest_s
from gangline.planning.allocation.bounds import Floats, Shares
from gangline.planning.allocation.kqv import kqv as kqv
from gangline.planning.allocation.kqv import kqv_weights, star_latency
from gangline.planning.allocation.proportional import drawn, equal
from gangline.planning.allocation.proportional import proportional as proportional
from gangline.spec.errors import UsageError


class AllocationProblem(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What is known about the workers, one entry per worker in each array."""

    global_batch: int
    fixed_s: Floats
    """Cost of a step however small, in seconds."""
    per_sample_s: Floats
    """Cost of one sample, in seconds."""
    operations_per_s: Floats
    memory_bytes: Floats
    """Memory in use."""
    latency_s: Floats
    """Round trip of a small message to the coordinator."""
    weights: Floats
    """What `fixed` goes by: given from outside, in any unit."""
    max_samples: Shares
    """The greatest share that fits into memory."""
    minimum: int = 1
    """The least share: 1, or more where BatchNorm needs it."""


Allocation: TypeAlias = Callable[[AllocationProblem, np.random.Generator], Shares]


def _equal(problem: AllocationProblem, rng: np.random.Generator) -> Shares:
    return equal(
        problem.global_batch,
        len(problem.fixed_s),
        minimum=problem.minimum,
        maximum=problem.max_samples,
    )


def _random(problem: AllocationProblem, rng: np.random.Generator) -> Shares:
    return drawn(
        problem.global_batch,
        len(problem.fixed_s),
        rng=rng,
        minimum=problem.minimum,
        maximum=problem.max_samples,
    )


def _fixed(problem: AllocationProblem, rng: np.random.Generator) -> Shares:
    return proportional(
        problem.global_batch,
        problem.weights,
        minimum=problem.minimum,
        maximum=problem.max_samples,
    )


def _kqv(problem: AllocationProblem, rng: np.random.Generator) -> Shares:
    """As published, with the equal share as baseline; it need not sum to the global batch.

    What would not fit into memory, or break BatchNorm, is clipped: a share that cannot be computed
    is no allocation.
    """
    shares = kqv(
        problem.global_batch / len(problem.fixed_s),
        operations_per_s=problem.operations_per_s,
        memory_bytes=problem.memory_bytes,
        latency_s=star_latency(problem.latency_s),
    )
    return np.clip(shares, problem.minimum, problem.max_samples)


def _kqv_normalised(problem: AllocationProblem, rng: np.random.Generator) -> Shares:
    weights = kqv_weights(
        operations_per_s=problem.operations_per_s,
        memory_bytes=problem.memory_bytes,
        latency_s=star_latency(problem.latency_s),
    )
    return proportional(
        problem.global_batch, weights, minimum=problem.minimum, maximum=problem.max_samples
    )


def _balanced(problem: AllocationProblem, rng: np.random.Generator) -> Shares:
    return balanced(
        problem.global_batch,
        problem.fixed_s,
        problem.per_sample_s,
        minimum=problem.minimum,
        maximum=problem.max_samples,
    )


ALLOCATIONS: Mapping[str, Allocation] = MappingProxyType(
    {
        "balanced": _balanced,
        "equal": _equal,
        "fixed": _fixed,
        "kqv": _kqv,
        "kqv-normalised": _kqv_normalised,
        "random": _random,
    }
)
"""The policies by which shares are made, for `allocation=`."""


PULLED = ("self-scheduled", "balanced+stolen")
"""Those by which workers pull: `control.shares.pulling` reads them."""


def allocate(name: str, problem: AllocationProblem, *, rng: np.random.Generator) -> Shares:
    """The shares that the policy `name` gives; `rng` is drawn from by `random` only."""
    return ALLOCATIONS[check_allocation(name)](problem, rng)


def check_allocation(name: str) -> str:
    """`name`, if there is such a policy."""
    if name not in ALLOCATIONS:
        known = [*ALLOCATIONS, *PULLED]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"no allocation {name!r}; there are {', '.join(known)}{hint}")
    return name
