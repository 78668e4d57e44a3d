# SPDX-License-Identifier: Apache-2.0
"""What a cluster file says of a cluster, as a profile: for a plan that nothing is measured for.

Speeds are relative, since nobody has computed anything yet. Links are there only where the file speaks
of a network; then between every two workers, since what it says may be about any two of them.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from gangline.spec.outlook import LOCAL_LINK
from gangline.spec.profile import ClusterProfile, Link, NodeProfile, PairLink

if TYPE_CHECKING:
    from gangline.spec.cluster import Cluster, Node


def known_profile(cluster: Cluster, *, local: Link = LOCAL_LINK) -> ClusterProfile:
    """One node per worker, in worker order; `local` is what lies between two processes of a host."""
    named = name_workers(cluster)
    nodes = tuple(
        NodeProfile(name=name, per_sample_s=1 / node.speed, place=node.place, access=_access(node))
        for name, node in named
    )
    if not cluster.has_network:
        return ClusterProfile(nodes=nodes)
    pairs = tuple(
        PairLink(
            source=first,
            target=second,
            there=_link(cluster, here, there, local=local),
            shared=_shared(cluster, here, there),
        )
        for (first, here), (second, there) in combinations(named, 2)
    )
    return ClusterProfile(nodes=nodes, pairs=pairs)


def name_workers(cluster: Cluster) -> list[tuple[str, Node]]:
    """Each worker's name and node: the node's own name, numbered where it has several workers."""
    return [
        (node.name if node.workers == 1 else f"{node.name}.{number}", node)
        for node in cluster.nodes
        for number in range(node.workers)
    ]


def _access(node: Node) -> Link | None:
    if node.bytes_per_s is None:
        return None
    return Link(latency_s=node.delay_s, bytes_per_s=node.bytes_per_s)


def _shared(cluster: Cluster, first: Node, second: Node) -> str:
    """A link between places is one for all that cross it."""
    link = cluster.link_between(first, second)
    return "" if link is None else " to ".join(link.between)


def _link(cluster: Cluster, first: Node, second: Node, *, local: Link) -> Link:
    """The way out of one node, what lies between, and the way into the other."""
    if first.name == second.name:
        return local
    between = cluster.link_between(first, second)
    limits = [first.bytes_per_s, second.bytes_per_s, between and between.bytes_per_s]
    delay_s = first.delay_s + second.delay_s + (0.0 if between is None else between.delay_s)
    return Link(
        latency_s=local.latency_s + delay_s,
        bytes_per_s=min(limit for limit in [local.bytes_per_s, *limits] if limit),
    )
