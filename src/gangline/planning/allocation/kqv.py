# SPDX-License-Identifier: Apache-2.0
"""Key-Query-Value allocation: the BalanceNet Orchestrator's equations 1 to 5, as published.

With OPSᵢ the operations per second of node i, MUᵢ the memory that it uses, NLᵢⱼ the time between a
request from i to j and its response (equation 3), and B a baseline batch size:

    Kᵢ    = OPSᵢ / Σₖ OPSₖ                                             (1)
    MWᵢ   = 1 − MUᵢ / Σₖ MUₖ                                           (2)
    NCWᵢⱼ = 1 − NLᵢⱼ / maxₖ NLᵢₖ                                       (4)
    BSᵢ   = max(⌊(Kᵢ + MWᵢ + Σⱼ NCWᵢⱼ) / 3 · B⌋, 1)                    (5)

How this is read where the publication leaves a choice:

- The maximum of (4) runs over k with i fixed, as its index says: node i's own slowest link, not the
  slowest link of the cluster (which the prose beside it suggests).
- The sum of (5) runs over all j as written, j = i included. A node reaches itself at once,
  NLᵢᵢ = 0, so this term is always 1, and the sum lies between 1 and N − 1 (for N ≥ 2).
- Where all latencies of a node are 0, or nobody uses memory, the quotient is 0/0: it counts as 0,
  since there is nothing to hold against the node.
- B is a batch per node ("a standard for the initial task allocation among nodes").

The three terms are neither bounded by 3 nor do they sum to 1 over the nodes, so the shares sum to
B·N only by accident; `kqv_weights` gives the numerator of (5) for those who normalise it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from gangline.planning.allocation.bounds import Floats, Shares


def kqv(
    baseline: float, *, operations_per_s: ArrayLike, memory_bytes: ArrayLike, latency_s: ArrayLike
) -> Shares:
    """Equation 5: the batch size of each node, from the baseline batch size per node."""
    weights = kqv_weights(
        operations_per_s=operations_per_s, memory_bytes=memory_bytes, latency_s=latency_s
    )
    return np.maximum(np.floor(weights / 3 * baseline), 1).astype(np.int64)


def kqv_weights(
    *, operations_per_s: ArrayLike, memory_bytes: ArrayLike, latency_s: ArrayLike
) -> Floats:
    """Kᵢ + MWᵢ + Σⱼ NCWᵢⱼ of each node; `latency_s` is the matrix NL of equation 4."""
    operations = _measured("operations per second", operations_per_s)
    memory = _measured("memory use", memory_bytes)
    latency = np.asarray(latency_s, dtype=np.float64)
    count = len(operations)
    if memory.shape != (count,) or latency.shape != (count, count):
        raise UsageError(
            f"kqv needs one operation rate, one memory use and a row of latencies for each worker; "
            f"got {count}, {len(memory)} and a matrix of shape {latency.shape}"
        )
    if not operations.any():
        raise UsageError(f"the operations per second of all {count} workers are 0; measure them")
    _measured("latency", latency.ravel())
    capability = operations / operations.sum()
    memory_weight = 1 - _share_of(memory, memory.sum())
    farthest = latency.max(axis=1, keepdims=True)
    communication_weight = 1 - _share_of(latency, farthest)
    return np.asarray(capability + memory_weight + communication_weight.sum(axis=1))


def star_latency(latency_s: ArrayLike) -> NDArray[np.float64]:
    """NL from each worker's latency to a common centre: NLᵢⱼ = lᵢ + lⱼ, and NLᵢᵢ = 0."""
    own = _measured("latency", latency_s)
    matrix = own[:, None] + own[None, :]
    np.fill_diagonal(matrix, 0.0)
    return matrix


def _share_of(part: NDArray[np.float64], whole: ArrayLike) -> NDArray[np.float64]:
    known = np.broadcast_to(np.asarray(whole, dtype=np.float64), part.shape)
    quotient = np.zeros_like(part)
    np.divide(part, known, out=quotient, where=known > 0)
    return quotient


def _measured(what: str, values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(bad):
        raise UsageError(f"{what} must be finite and 0 or more, not {array[bad[0]]}")
    return array
