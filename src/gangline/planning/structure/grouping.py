# SPDX-License-Identifier: Apache-2.0
"""Groups by the magnitude of link cost: the default.

The tree of places is kept where it tells links of different magnitude apart, and flattened where it
does not. Nodes whose own link is of another magnitude than that of the place form a group of their own.
Magnitudes are gaps on a logarithmic scale (`scales`): no number of groups is given, sizes follow from
the cluster, and noise below the gap changes nothing.

Compute cost does not split a group: shares fit speeds, so that unlike nodes finish together. It decides
who is left out, for which the members of each group are told apart by the magnitude of their cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gangline.planning.cost.scales import magnitude_classes
from gangline.planning.structure.nest import Nest, merged

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gangline.planning.cost.network import Network
    from gangline.planning.structure.nest import NodeNumbers


def by_links(network: Network, nodes: NodeNumbers, *, num_bytes: float) -> Nest:
    """The hierarchy of these nodes, which must be connected."""
    places = network.places
    place_s = places.latency_s + num_bytes / places.bytes_per_s
    here = np.array(
        sorted({p for of in set(places.of_node[nodes].tolist()) for p in places.path(of)})
    )
    access_s = network.access_latency_s[nodes] + num_bytes / network.access_bytes_per_s[nodes]
    own_s = np.maximum(access_s, place_s[places.of_node[nodes]])
    classes = magnitude_classes(_positive(np.concatenate((place_s[here], own_s))))
    class_of = dict(zip(here.tolist(), classes[: len(here)].tolist(), strict=True))
    kept = _kept_places(network, class_of)
    return _build(network, nodes, kept=kept, own_class=classes[len(here) :], class_of=class_of)


def units(nest: Nest, cost_s: NDArray[np.float64]) -> list[NodeNumbers]:
    """What is used or left out together: the like nodes of each group, by magnitude of compute cost."""
    everybody = np.concatenate([leaf.members for leaf in nest.leaves()])
    classes = np.zeros(len(cost_s), dtype=np.int64)
    classes[everybody] = magnitude_classes(cost_s[everybody])
    return [
        leaf.members[classes[leaf.members] == value]
        for leaf in nest.leaves()
        for value in np.unique(classes[leaf.members])
    ]


def _kept_places(network: Network, class_of: dict[int, int]) -> dict[int, int]:
    """For each place, the place that stands for it: itself, or one around it of the same magnitude."""
    kept: dict[int, int] = {}
    for place in class_of:
        around = network.places.parent[place]
        if around < 0:
            kept[place] = place
        else:
            is_like = class_of[place] == class_of[kept[around]]
            kept[place] = kept[around] if is_like else place
    return kept


def _build(
    network: Network,
    nodes: NodeNumbers,
    *,
    kept: dict[int, int],
    own_class: NDArray[np.int64],
    class_of: dict[int, int],
) -> Nest:
    places = network.places
    home = np.array([kept[place] for place in places.of_node[nodes].tolist()])
    order = np.lexsort((own_class, home))
    edges = np.flatnonzero(np.diff(home[order]) | np.diff(own_class[order])) + 1
    inside: dict[int, list[Nest]] = {}
    for part in np.split(order, edges):
        place = int(home[part[0]])
        is_like = int(own_class[part[0]]) <= class_of[place]
        name = places.names[place] or "all"
        leaf = Nest(name=name if is_like else f"{name}, own links", members=np.sort(nodes[part]))
        inside.setdefault(place, []).append(leaf)
    standing = sorted({*kept.values()}, reverse=True)
    for place in standing:
        group = merged(places.names[place] or "all", inside.get(place, []))
        around = places.parent[place]
        if group is not None and around >= 0:
            inside.setdefault(kept[around], []).append(group)
        elif group is not None:
            return group
    raise AssertionError("the root place holds every node")


def _positive(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Links may cost nothing where nothing is exchanged; logarithms need a number above 0."""
    known = values[np.isfinite(values) & (values > 0)]
    least = float(known.min()) if len(known) else 1.0
    return np.where(np.isfinite(values) & (values > 0), values, least)
