# SPDX-License-Identifier: Apache-2.0
"""Who takes part: the sets of nodes that are worth a prediction.

A group behind a slow link may cost more to exchange with than it saves in computing, and so may the
last nodes of a large ring. Few nodes, and few groups, are tried in every combination. Many are put in
order: by what they can compute, by how near they are to the best of them, by how fast their nodes are.
The first 1, 2, 4, … of each order are tried, as are the first 1, 2, 4, … nodes; around the best of
these, the numbers between are tried too.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from gangline.planning.structure.candidates import (
    BY_GROUPS,
    EVERYBODY,
    FLAT_RING,
    FLAT_SERVER,
    Candidate,
    Evaluator,
)
from gangline.planning.structure.grouping import units

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gangline.planning.allocation.bounds import Floats
    from gangline.planning.cost.network import Network
    from gangline.planning.structure.nest import Nest, NodeNumbers

FEW_UNITS = 7
"""Up to so many, every combination is tried: at most 127."""
REFINEMENTS = 2
"""How often the distance between two tried numbers of nodes is cut in four."""


class Search:
    """The best candidate over all sets of nodes that are tried; each set is tried once."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._tried: dict[bytes, Candidate] = {}
        self.best: Candidate | None = None

    def can_hold(self, nodes: NodeNumbers) -> bool:
        """Whether the batch fits into the memory of these nodes."""
        return self._evaluator.can_hold(nodes)

    def consider(self, nodes: NodeNumbers, *, crowd: str) -> Candidate:
        """The best structure for a set of nodes, of the three that need no drawing."""
        cut = self._evaluator.cut(nodes)
        key = cut.nodes.tobytes()
        if key not in self._tried:
            self._tried[key] = min(
                (
                    self._evaluator.candidate(structure, cut, crowd=crowd)
                    for structure in (BY_GROUPS, FLAT_RING, FLAT_SERVER)
                ),
                key=lambda candidate: candidate.rank,
            )
        found = self._tried[key]
        if self.best is None or found.rank < self.best.rank:
            self.best = found
        return found


def find_crowd(search: Search, network: Network, nest: Nest, *, cost_s: Floats) -> Candidate:
    """Tries sets of nodes; `cost_s` is each node's time for an average share."""
    everybody = np.concatenate([leaf.members for leaf in nest.leaves()])
    best = search.consider(everybody, crowd=EVERYBODY)
    found = units(nest, cost_s)
    if len(everybody) <= FEW_UNITS:
        found = [everybody[i : i + 1] for i in range(len(everybody))]
    by_worth = sorted(found, key=lambda unit: _worth(unit, cost_s))
    for chosen in _choices(network, by_worth, cost_s):
        _consider_fitting(
            search, np.concatenate(chosen), crowd=f"{len(chosen)} of {len(found)} units"
        )
    ordered = np.concatenate(
        [unit[np.lexsort((network.fixed_s[unit], cost_s[unit]))] for unit in by_worth]
    )
    _try_numbers(search, ordered)
    fastest = everybody[np.lexsort((network.fixed_s[everybody], cost_s[everybody]))]
    if not np.array_equal(fastest, ordered):
        _try_numbers(search, fastest)
    return search.best or best


def _worth(unit: NodeNumbers, cost_s: Floats) -> tuple[float, float]:
    """The most computing first; of equals, the least cost per node."""
    return -float((1 / cost_s[unit]).sum()), float(cost_s[unit].min())


def _choices(
    network: Network, by_worth: Sequence[NodeNumbers], cost_s: Floats
) -> Iterator[Sequence[NodeNumbers]]:
    if len(by_worth) <= FEW_UNITS:
        for count in range(1, len(by_worth) + 1):
            yield from combinations(by_worth, count)
        return
    core = int(by_worth[0][0])
    near = sorted(
        by_worth, key=lambda unit: (_distance_s(network, core, unit), _worth(unit, cost_s))
    )
    quick = sorted(
        by_worth, key=lambda unit: (float(np.median(cost_s[unit])), _worth(unit, cost_s))
    )
    for order in (by_worth, near, quick):
        for count in _powers(len(order)):
            yield order[:count]


def _distance_s(network: Network, core: int, unit: NodeNumbers) -> float:
    places = network.places
    place = places.meeting_place(int(places.of_node[core]), int(places.of_node[unit[0]]))
    access_s = float(
        network.access_latency_s[unit].max() + 1e6 / network.access_bytes_per_s[unit].min()
    )
    return max(float(places.latency_s[place] + 1e6 / places.bytes_per_s[place]), access_s)


def _try_numbers(search: Search, ordered: NodeNumbers) -> None:
    """The first 1, 2, 4, … nodes, and numbers between the neighbours of the best of these."""
    times = {}
    for count in _powers(len(ordered)):
        found = _consider_fitting(search, ordered[:count], crowd=f"the first {count} nodes")
        if found is not None:
            times[count] = found.rank
    for _ in range(REFINEMENTS):
        counts = sorted(times)
        if not counts:
            return
        place = counts.index(min(counts, key=lambda count: times[count]))
        low, high = counts[max(place - 1, 0)], counts[min(place + 1, len(counts) - 1)]
        for count in {int(c) for c in np.linspace(low, high, 5)[1:-1]} - set(counts):
            found = _consider_fitting(search, ordered[:count], crowd=f"the first {count} nodes")
            if found is not None:
                times[count] = found.rank


def _consider_fitting(search: Search, nodes: NodeNumbers, *, crowd: str) -> Candidate | None:
    """A set of nodes, if the batch fits into its memory."""
    if not search.can_hold(nodes):
        return None
    return search.consider(nodes, crowd=crowd)


def _powers(count: int) -> list[int]:
    return sorted({*(1 << k for k in range(count.bit_length())), count})
