# SPDX-License-Identifier: Apache-2.0
"""How many groups to use: paper 000's equations 1 to 5, as written.

With m jobs, groups of M₁, M₂, … M_p nodes whose compute cost grows by a factor N from one to the next,
N also the cost of a job on a node of the first group, n the size of the data and T_r the transfer cost
per unit of it:

    serial                 m·N
    one group, m ≤ M₁      n·T_r + N
    parallel_{M₁}          (n·T_r + N)·(m/M₁ + 1)                                              (1)
    parallel_{M₁M₂}        (n·T_r + N)·m/(N·M₁ + M₂)                                           (2)
    parallel_{M₁M₂M₃}      (n·T_r + N)·m/(N²·M₁ + N·M₂ + M₃)                                   (3)
    parallel_{M₁…M_p}      (n·T_r + N)·m/(N^(p−1)·M₁ + N^(p−2)·M₂ + … + M_p)              (4) and (5)

Another operation on the same nodes costs r_b·N instead of N, r_b = op_b/op_a.

What they leave out, and `cost` does not: one transfer cost holds for all groups, so that a slow link to
the last group costs nothing extra, and adding a group never looks bad; latency and bandwidth, topology
and the number of members have no part in T_r; jobs are not whole numbers; N is both a time and a ratio,
so the equations hold for one unit of time only (and (1) is not (2) without its second group: the +1
rounds up, as the others do not). They compare p options, and are here to be compared with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


def serial(jobs: float, cost: float, *, operation_ratio: float = 1.0) -> float:
    """All jobs on one node of the first group: m·N."""
    return jobs * operation_ratio * cost


def parallel(
    jobs: float,
    sizes: Sequence[int],
    *,
    cost: float,
    transfer: float,
    operation_ratio: float = 1.0,
) -> float:
    """Equation 1 for one group, 2 to 5 for several; `transfer` is n·T_r, `cost` is N."""
    if not sizes or min(sizes) < 1:
        raise UsageError(f"groups need at least one node each, not {list(sizes)}")
    if cost <= 0 or transfer < 0 or jobs <= 0:
        raise UsageError(
            f"jobs and cost must be above 0 and transfer 0 or more, not {jobs}, {cost}, {transfer}"
        )
    ratio = operation_ratio * cost
    if len(sizes) == 1:
        rounds = 1.0 if jobs <= sizes[0] else jobs / sizes[0] + 1
        return (transfer + ratio) * rounds
    weights = [ratio ** (len(sizes) - 1 - place) for place in range(len(sizes))]
    power = sum(weight * size for weight, size in zip(weights, sizes, strict=True))
    return (transfer + ratio) * jobs / power


def best_number_of_groups(
    jobs: float,
    sizes: Sequence[int],
    *,
    cost: float,
    transfer: float,
    operation_ratio: float = 1.0,
) -> int:
    """The least costly of the p options; 0 is the serial one."""
    options = [serial(jobs, cost, operation_ratio=operation_ratio)]
    options += [
        parallel(
            jobs,
            sizes[: count + 1],
            cost=cost,
            transfer=transfer,
            operation_ratio=operation_ratio,
        )
        for count in range(len(sizes))
    ]
    return options.index(min(options))
