# SPDX-License-Identifier: Apache-2.0
"""Homogeneous group separation: paper 000's algorithm 1, as written.

    for i = 0 to n
        for j = i − 1 downto 1
            if O(C[i, i−1]) = O(C[j, j−1])
                W_i.groupId = W_j.groupId;  Group[W_i.groupId].add(W_i)

C[i, i−1] is the cost of the link between worker i and the one listed before it, and O(x) its order of
magnitude, read as ⌊log₁₀ x⌋ of seconds. `Group` is by links; `group` is the same by compute cost.

How this is read where the text leaves a choice: a worker that matches nobody opens a group (the text
gives it none); worker 0 has no predecessor, so it shares the link of worker 1 and its group; the inner
loop goes on after a match, so that the last one (the lowest j) counts, which puts all workers of one
magnitude into one group.

What it leaves out, and `grouping.by_links` does not: it compares neighbours in a list, so the result
depends on the order of the list; two sites far from each other whose inner links are alike become one
group; a cost of 0.99 and one of 1.01 are told apart, 1.01 and 9.9 are not.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gangline.planning.structure.nest import Nest, merged

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from gangline.planning.cost.network import Network
    from gangline.planning.structure.nest import NodeNumbers


def separate(costs: ArrayLike) -> NDArray[np.int64]:
    """The group of each worker by the orders of magnitude of `costs`, numbered as they are opened."""
    magnitude = np.floor(np.log10(np.maximum(np.asarray(costs, dtype=np.float64), 1e-300)))
    _, first, inverse = np.unique(magnitude, return_index=True, return_inverse=True)
    opened = np.argsort(np.argsort(first))
    return np.asarray(opened[inverse.reshape(-1)], dtype=np.int64)


def by_algorithm_1(network: Network, nodes: NodeNumbers, *, num_bytes: float) -> Nest:
    """Groups of workers that match both by link and by compute cost."""
    links = np.array([_link_s(network, a, b, num_bytes) for a, b in pairwise(nodes.tolist())])
    if not len(links):
        return Nest(name="group 1", members=nodes)
    by_link = separate(np.concatenate((links[:1], links)))
    by_compute = separate(network.cost_at(1.0)[nodes])
    label = by_link * (by_compute.max() + 1) + by_compute
    groups = [
        Nest(name=f"group {i + 1}", members=nodes[label == value])
        for i, value in enumerate(np.unique(label))
    ]
    nest = merged("all", groups)
    assert nest is not None
    return nest


def _link_s(network: Network, first: int, second: int, num_bytes: float) -> float:
    latency_s, bytes_per_s = network.hop(first, second)
    return latency_s + num_bytes / bytes_per_s
