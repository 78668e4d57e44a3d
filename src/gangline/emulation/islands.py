# SPDX-License-Identifier: Apache-2.0
"""The plan of an emulated network: which nodes are on one switch, and what lies between the others.

Nodes between which there is nothing but their own links are one island: they are on one switch, and
the kernel moves what they send. Between islands our relay does, which can hold it back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.spec.cluster import is_at

if TYPE_CHECKING:
    from gangline.spec.cluster import Cluster, Node

FIRST_ADDRESS = 10
_SUBNET = "198.18"
PREFIX_BITS = 16
MAC_PREFIX = bytes([0x02, 0x67, 0x6C, 0x00])
"""Followed by a node's number in two bytes; the first byte says that nobody sold it."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """What lies between two nodes of different islands, one way."""

    pipe: tuple[int, int] | None
    """The link's number and direction: all ways with the same pipe share its bandwidth."""
    delay_s: float


class NetworkPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes of a cluster, by number."""

    islands: tuple[tuple[int, ...], ...]
    ways: dict[tuple[int, int], Way]
    """From one node to another; only those that are on different islands."""

    @property
    def needs_relay(self) -> bool:
        """Whether anything lies between islands."""
        return len(self.islands) > 1

    def island_of(self) -> dict[int, int]:
        """The island of each node."""
        return {node: i for i, island in enumerate(self.islands) for node in island}


def plan_network(cluster: Cluster) -> NetworkPlan:
    """The islands of a cluster, and the ways between them."""
    by_shore: dict[tuple[str, ...], list[int]] = {}
    for number, node in enumerate(cluster.nodes):
        by_shore.setdefault(_shore(cluster, node), []).append(number)
    islands = tuple(tuple(island) for island in by_shore.values())
    plan = NetworkPlan(islands=islands, ways={})
    island_of = plan.island_of()
    ways = {
        (source, target): _way(cluster, source, target)
        for source in island_of
        for target in island_of
        if island_of[source] != island_of[target]
    }
    return NetworkPlan(islands=islands, ways=ways)


def address_of(node: int) -> str:
    """The address of a node in its network: of a range that is set aside for measuring networks."""
    return f"{_SUBNET}.{(node + FIRST_ADDRESS) // 256}.{(node + FIRST_ADDRESS) % 256}"


def mac_of(node: int) -> bytes:
    """The hardware address of a node's interface."""
    return MAC_PREFIX + node.to_bytes(2, "big")


def _shore(cluster: Cluster, node: Node) -> tuple[str, ...]:
    """Nodes at the same ends of the same links are alike to everybody else."""
    if node.delay_s:
        return (node.name, "")
    return tuple(sorted({e for link in cluster.links for e in link.between if is_at(node, e)}))


def _way(cluster: Cluster, source: int, target: int) -> Way:
    first, second = cluster.nodes[source], cluster.nodes[target]
    delay_s = first.delay_s + second.delay_s
    link = cluster.link_between(first, second)
    if link is None:
        return Way(pipe=None, delay_s=delay_s)
    number, direction = cluster.links.index(link), int(is_at(first, link.between[1]))
    return Way(pipe=(number, direction), delay_s=delay_s + link.delay_s)
