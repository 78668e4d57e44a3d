# SPDX-License-Identifier: Apache-2.0
"""The links of one group: the order of its ring, its best server, its leader, and what they cost."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gangline.planning.cost.model import LinkCost, all_reduce_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.planning.cost.network import Network
    from gangline.planning.structure.nest import NodeNumbers

FEW = 64
"""Up to so many members, links that were measured one by one are searched for the best ring."""
LIKE = 1.1
"""Links within this factor are alike: which one is better is noise."""


class GroupLinks(NamedTuple):
    """What the exchange of a group must reckon with, whichever topology it uses."""

    order: NodeNumbers
    """The ring."""
    ring: LinkCost
    star: LinkCost
    """From every member to `server`."""
    pairwise: LinkCost
    """Between any two members at once: the ways that lead out of a place are shared."""
    server: int

    def of(self, topology: str) -> LinkCost:
        """The cost that a topology meets."""
        if topology == "parameter-server":
            return self.star
        return self.ring if topology == "ring" else self.pairwise


class LinkBook:
    """The links of groups, looked up once: most groups recur in most sets of nodes that are tried."""

    def __init__(self, network: Network, *, num_bytes: float) -> None:
        self._network = network
        self._num_bytes = num_bytes
        self._links: dict[bytes, GroupLinks] = {}
        self._leaders: dict[bytes, int] = {}

    def links(self, members: NodeNumbers) -> GroupLinks:
        """The best use of the links between these nodes."""
        key = members.tobytes()
        if key not in self._links:
            self._links[key] = group_links(self._network, members, num_bytes=self._num_bytes)
        return self._links[key]

    def leader(self, members: NodeNumbers, *, away: NodeNumbers | None = None) -> int:
        """Who speaks for these nodes."""
        if away is not None:
            return choose_leader(self._network, members, away=away, num_bytes=self._num_bytes)
        key = members.tobytes()
        if key not in self._leaders:
            self._leaders[key] = choose_leader(
                self._network, members, away=None, num_bytes=self._num_bytes
            )
        return self._leaders[key]


def group_links(network: Network, members: NodeNumbers, *, num_bytes: float) -> GroupLinks:
    """The best use of the links between these nodes; `num_bytes` is the size of a message."""
    order = members[np.argsort(network.places.of_node[members], kind="stable")]
    gamma = float(network.reduce_s_per_byte[members].max())
    if len(members) == 1:
        nothing = LinkCost(0.0, 0.0, gamma)
        return GroupLinks(order, nothing, nothing, nothing, int(members[0]))
    if network.pairs and len(members) <= FEW:
        return _of_few(network, order, gamma=gamma, num_bytes=num_bytes)
    return _of_many(network, order, gamma=gamma, num_bytes=num_bytes)


def choose_leader(
    network: Network, members: NodeNumbers, *, away: NodeNumbers | None, num_bytes: float
) -> int:
    """The member with the best link to those `away`; of like links, the fastest node.

    The leader carries the group's bytes besides its own share: the fastest has the most room for it.
    """
    out_s = network.access_latency_s[members] + num_bytes / network.access_bytes_per_s[members]
    if network.pairs and away is not None and 0 < len(away) <= FEW and len(members) <= FEW:
        out_s = _times(network, members, away, num_bytes=num_bytes).min(axis=1)
    is_near = out_s <= LIKE * out_s.min() + 1e-12
    near = members[is_near]
    order = np.lexsort((out_s[is_near], network.fixed_s[near], network.per_sample_s[near]))
    return int(near[order[0]])


def _of_many(network: Network, order: NodeNumbers, *, gamma: float, num_bytes: float) -> GroupLinks:
    if network.pairs:
        ring = ring_cost(network, order.tolist(), gamma=gamma)
    else:
        ring = _zone_ring(network, order, gamma=gamma)
    crossed = list(network.places.crossed(order))
    zone_speed = float(network.places.bytes_per_s[crossed].min())
    server = choose_leader(network, order, away=None, num_bytes=num_bytes)
    # The server's own link carries everybody's bytes, and so does the way into its place.
    own = float(network.access_bytes_per_s[server])
    is_spread = len(crossed) > 1 or not np.isfinite(own)
    server_speed = min(own, zone_speed) if is_spread else own
    latency, beta = ring.latency_s, ring.s_per_byte
    return GroupLinks(
        order=order,
        ring=ring,
        star=LinkCost(latency, beta, gamma, 1 / server_speed),
        pairwise=LinkCost(latency, beta * _sharing(network, order, crossed), gamma),
        server=server,
    )


def _zone_ring(network: Network, order: NodeNumbers, *, gamma: float) -> LinkCost:
    """What a ring must reckon with that goes from place to place."""
    num_links = network.places.crossed(order)
    part = np.array(list(num_links.values())) / len(order)
    latency_s = network.places.latency_s[list(num_links)]
    s_per_byte = 1 / network.places.bytes_per_s[list(num_links)]
    own_latency_s = network.access_latency_s[order]
    own_s_per_byte = 1 / network.access_bytes_per_s[order]
    return LinkCost(
        latency_s=float(max(latency_s.max(), own_latency_s.max())),
        s_per_byte=float(max(s_per_byte.max(), own_s_per_byte.max())),
        reduce_s_per_byte=gamma,
        mean_latency_s=float(max(part @ latency_s, own_latency_s.mean())),
        mean_s_per_byte=float(max(part @ s_per_byte, own_s_per_byte.mean())),
    )


def _sharing(network: Network, order: NodeNumbers, crossed: list[int]) -> int:
    """How many members may use the way out of one place at once."""
    if len(crossed) <= 1:
        return 1
    inner = network.places.of_node[order]
    return int(np.unique(inner, return_counts=True)[1].max())


def _of_few(network: Network, order: NodeNumbers, *, gamma: float, num_bytes: float) -> GroupLinks:
    times = _times(network, order, order, num_bytes=num_bytes)
    np.fill_diagonal(times, 0.0)
    ring = order[_short_ring(times)]
    stars = [star_cost(network, order.tolist(), server=int(node), gamma=gamma) for node in order]
    hub = min(
        range(len(order)),
        key=lambda i: all_reduce_s(
            "parameter-server", len(order), num_bytes=num_bytes, link=stars[i]
        ),
    )
    every = [network.hop(int(a), int(b)) for i, a in enumerate(order) for b in order[:i]]
    worst = LinkCost(max(h[0] for h in every), 1 / min(h[1] for h in every), gamma)
    return GroupLinks(
        order=ring,
        ring=ring_cost(network, ring.tolist(), gamma=gamma),
        star=stars[hub],
        pairwise=worst,
        server=int(order[hub]),
    )


def ring_cost(network: Network, order: Sequence[int], *, gamma: float) -> LinkCost:
    """What a ring of these nodes, in this order, must reckon with."""
    hops = [network.hop(a, b) for a, b in zip(order, (*order[1:], order[0]), strict=True)]
    return LinkCost(
        latency_s=max(hop[0] for hop in hops),
        s_per_byte=1 / min(hop[1] for hop in hops),
        reduce_s_per_byte=gamma,
        mean_latency_s=float(np.mean([hop[0] for hop in hops])),
        mean_s_per_byte=float(np.mean([1 / hop[1] for hop in hops])),
    )


def star_cost(network: Network, members: Sequence[int], *, server: int, gamma: float) -> LinkCost:
    """What a parameter server must reckon with: the ways of all others to it, and what they share."""
    others = [node for node in members if node != server]
    spokes = [network.hop(server, node) for node in others]
    own = float(network.access_bytes_per_s[server])
    # Where the server's own link is not known, no measured link can be faster than it.
    own_speed = own if np.isfinite(own) else max(spoke[1] for spoke in spokes)
    load_s = [len(others) / own_speed]
    users = Counter(network.way(server, node) for node in others)
    for node, spoke in zip(others, spokes, strict=True):
        way = network.way(server, node)
        if way:
            load_s.append(users[way] / spoke[1])
    return LinkCost(
        latency_s=max(spoke[0] for spoke in spokes),
        s_per_byte=1 / min(spoke[1] for spoke in spokes),
        reduce_s_per_byte=gamma,
        server_s_per_byte=max(load_s) / len(others),
    )


def _times(
    network: Network, rows: NodeNumbers, columns: NodeNumbers, *, num_bytes: float
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Seconds of a message between nodes, few enough for a table."""
    table = np.zeros((len(rows), len(columns)))
    for i, a in enumerate(rows.tolist()):
        for j, b in enumerate(columns.tolist()):
            if a != b:
                latency_s, bytes_per_s = network.hop(a, b)
                table[i, j] = latency_s + num_bytes / bytes_per_s
    return table


def _short_ring(
    times: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> list[int]:
    """A ring whose worst hop is short: nearest neighbours first, then exchanges of two hops."""
    ring, left = [0], set(range(1, len(times)))
    while left:
        last = ring[-1]
        nearest = min(sorted(left), key=lambda node: times[last, node])
        ring.append(nearest)
        left.discard(nearest)
    for _ in range(len(ring)):
        improved = _uncross(ring, times)
        if improved is None:
            return ring
        ring = improved
    return ring


def _uncross(
    ring: list[int], times: np.ndarray[tuple[int, int], np.dtype[np.float64]]
) -> list[int] | None:
    """The ring with its worst hop exchanged for shorter ones; None where that cannot be done."""
    hops = [float(times[a, b]) for a, b in zip(ring, ring[1:] + ring[:1], strict=True)]
    worst = int(np.argmax(hops))
    turned = ring[worst + 1 :] + ring[: worst + 1]
    best, best_s = None, hops[worst] * (1 - 1e-9)
    for cut in range(1, len(ring) - 1):
        head, tail = turned[:cut], turned[cut:]
        new_s = max(float(times[head[0], tail[0]]), float(times[head[-1], tail[-1]]))
        if new_s < best_s:
            best, best_s = head[::-1] + tail, new_s
    return best
