# SPDX-License-Identifier: Apache-2.0
"""The links of one group: the order of its ring, its best server, its leader, and what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gangline.planning.cost import LinkCost

if TYPE_CHECKING:
    from gangline.planning.nest import NodeNumbers
    from gangline.planning.network import Network

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
    places = network.places
    crossed = places.crossed(order)
    latency = max(
        float(places.latency_s[crossed].max()), float(network.access_latency_s[order].max())
    )
    zone_speed = float(places.bytes_per_s[crossed].min())
    slow_node = float(network.access_bytes_per_s[order].min())
    beta = 1 / min(zone_speed, slow_node)
    if network.pairs:
        hops = [network.hop(int(a), int(b)) for a, b in zip(order, np.roll(order, -1), strict=True)]
        latency, beta = max(hop[0] for hop in hops), 1 / min(hop[1] for hop in hops)
    server = choose_leader(network, order, away=None, num_bytes=num_bytes)
    # The server's own link carries everybody's bytes, and so does the way into its place.
    own = float(network.access_bytes_per_s[server])
    is_spread = len(crossed) > 1 or not np.isfinite(own)
    server_speed = min(own, zone_speed) if is_spread else own
    return GroupLinks(
        order=order,
        ring=LinkCost(latency, beta, gamma),
        star=LinkCost(latency, beta, gamma, 1 / server_speed),
        pairwise=LinkCost(latency, beta * _sharing(network, order, crossed), gamma),
        server=server,
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
    ring = _short_ring(times)
    hops = [
        network.hop(int(order[a]), int(order[b]))
        for a, b in zip(ring, np.roll(ring, -1), strict=True)
    ]
    hub = int(np.argmin(times.max(axis=1)))
    others = np.delete(np.arange(len(order)), hub)
    spokes = [network.hop(int(order[hub]), int(order[i])) for i in others]
    latency, speed = max(s[0] for s in spokes), min(s[1] for s in spokes)
    own = float(network.access_bytes_per_s[order[hub]])
    # Where the server's own link is not known, no measured link can be faster than it.
    server_speed = own if np.isfinite(own) else max(s[1] for s in spokes)
    every = [network.hop(int(a), int(b)) for i, a in enumerate(order) for b in order[:i]]
    worst = LinkCost(max(h[0] for h in every), 1 / min(h[1] for h in every), gamma)
    return GroupLinks(
        order=order[ring],
        ring=LinkCost(max(h[0] for h in hops), 1 / min(h[1] for h in hops), gamma),
        star=LinkCost(latency, 1 / speed, gamma, 1 / server_speed),
        pairwise=worst,
        server=int(order[hub]),
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
