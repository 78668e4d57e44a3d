# SPDX-License-Identifier: Apache-2.0
"""What parameter servers cost: who can serve how much, and what an update takes with N of them.

Every worker pushes its gradient, B bytes, to the servers, each of which holds a part of the parameters;
each server passes what it is given on to its copy; every worker pulls. A server's link carries one
message after the other, so where n workers push at once, that takes

    B · part · (the sum over the n - 1 others of 1 / bandwidth)

at the server that this is longest for, and so does pulling. That is what a link takes that all of them
share, and too much where each has a slow link of its own. Copies go on while the next one pushes; of
several servers, each takes in those of another one, too. Who pushes while the others compute waits for
its own B alone, as long as the servers keep up. Of the k units that are pushed, all but the last are
hidden by the backward pass, as far as that takes; pulls and copies are not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from gangline.planning.cost.network import resolve
from gangline.spec.serving import MAX_SERVERS
from gangline.spec.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gangline.planning.cost.network import Network
    from gangline.spec.plan import Plan
    from gangline.spec.profile import ClusterProfile

MOST_PEERS = 32
"""A node's links to so many others are looked at, evenly chosen: of thousands, these tell enough."""
MOST_NODES = 1024
"""Of so many nodes of a plan, evenly chosen."""
_FAST = 1e18
"""Bytes a second where no link limits them."""
_LARGE_BYTES = 1e6
"""A message whose time is that of its bytes."""


def serving_rates(profile: ClusterProfile) -> tuple[float, ...]:
    """How many bytes a second each node can take in from the others, and add up: what it can serve."""
    network = resolve(profile, Workload(global_batch=1, gradient_bytes=_LARGE_BYTES))
    return _rates(network, range(len(profile.nodes)))


def _rates(network: Network, nodes: Sequence[int]) -> tuple[float, ...]:
    rates = []
    for node in nodes:
        # The mean of the bandwidths, not of the times: who is slow to push keeps nobody else waiting.
        bandwidths = _bandwidths(network, node, nodes)
        link_s = len(bandwidths) / sum(bandwidths)
        s_per_byte = link_s + float(network.reduce_s_per_byte[node])
        rates.append(1 / s_per_byte if s_per_byte > 0 else math.inf)
    return tuple(rates)


def _bandwidths(network: Network, node: int, nodes: Sequence[int]) -> list[float]:
    """Of a node's links to the others."""
    others = [one for one in nodes[:: 1 + len(nodes) // MOST_PEERS] if one != node]
    return [network.hop(node, other)[1] for other in others] or [math.inf]


def _mean_s(network: Network, node: int, nodes: Sequence[int]) -> float:
    """What a byte from another node takes a server, one after the other and on average."""
    taken_s = [1 / bandwidth for bandwidth in _bandwidths(network, node, nodes)]
    return sum(taken_s) / len(taken_s) + float(network.reduce_s_per_byte[node])


class ServedCost(NamedTuple):
    """What an update takes with so many servers."""

    servers: int
    together_s: float
    """Where all push and pull at the same time: `bsp`."""
    alone_s: float
    """Where a worker does while the others compute: `asp`, as long as the servers keep up."""
    busy_s: float
    """How long the busiest server's link is taken by one update of everybody."""
    bsp_step_s: float
    asp_step_s: float
    """For as many samples as a global batch has, of all workers together."""


class ServedComparison(NamedTuple):
    """Parameter servers beside the chosen structure and `flexible`, for the nodes of a plan."""

    rows: tuple[ServedCost, ...]
    best: ServedCost
    """The one whose `asp` is fastest; of like ones, with the fewest servers."""
    apart_s: float
    """`flexible`: computing alone, since merges go on beside it. No `asp` takes less."""


def compare_served(
    profile: ClusterProfile, workload: Workload, plan: Plan, *, replicas: int = 1
) -> ServedComparison:
    """What 1, 2, 4, … servers would cost on the nodes of a plan, with its shares."""
    network = resolve(profile, workload)
    number = {name: i for i, name in enumerate(network.names)}
    nodes = [number[name] for name in plan.nodes[:: 1 + len(plan.nodes) // MOST_NODES]]
    rates = dict(zip(nodes, _rates(network, nodes), strict=True))
    apart_s = plan.prediction.compute_s + plan.prediction.other_s
    most = min(len(nodes), MAX_SERVERS)
    counts = [1 << power for power in range(MAX_SERVERS.bit_length()) if 1 << power < most]
    load = _Load(len(plan.nodes), workload.gradient_bytes * workload.compression, replicas)
    units = max(1, math.ceil(workload.gradient_bytes / workload.unit_bytes))
    room = _Room(apart_s, workload.overlap * plan.prediction.compute_s, 1 - 1 / units)
    rows = tuple(_cost(network, rates, count, load, room) for count in (*counts, most))
    best = min(rows, key=lambda row: (row.asp_step_s, row.bsp_step_s, row.servers))
    return ServedComparison(rows=rows, best=best, apart_s=apart_s)


class _Load(NamedTuple):
    """What servers are asked to do."""

    workers: int
    num_bytes: float
    replicas: int


class _Room(NamedTuple):
    """What is computed meanwhile."""

    apart_s: float
    backward_s: float
    part: float
    """Of what is pushed, how much may go on during the backward pass."""

    def hidden_s(self, pushes_s: float) -> float:
        """How much of so many seconds of pushing is."""
        return min(self.part * pushes_s, self.backward_s)


def _cost(
    network: Network, rates: Mapping[int, float], count: int, load: _Load, room: _Room
) -> ServedCost:
    """`rates` are those of the nodes that are looked at."""
    num_bytes, replicas, others = load.num_bytes, load.replicas, load.workers - 1
    chosen = sorted(rates, key=lambda node: (-rates[node], node))[:count]
    finite = [min(rates[node], _FAST) for node in chosen]
    parts = [rate / sum(finite) for rate in finite]
    latency_s = max(
        (network.hop(chosen[0], one)[0] for one in rates if one != chosen[0]), default=0.0
    )
    nodes = list(rates)
    one_s = max(
        num_bytes * part * _mean_s(network, server, nodes)
        for server, part in zip(chosen, parts, strict=True)
    )
    own_s = max(_own_s(network, node, chosen, parts, num_bytes) for node in rates)
    all_s = max(own_s, others * one_s)
    # Where there are several servers, copies come in beside the pushes; a single one's go elsewhere.
    pushes_s = max(own_s, others * one_s * (1 + replicas * (count > 1)))
    ways_s = (2 + replicas) * latency_s
    together_s = ways_s + pushes_s + replicas * one_s + all_s if others else 0.0
    alone_s = ways_s + 2 * own_s + replicas * one_s if others else 0.0
    busy_s = (1 + replicas) * others * one_s
    return ServedCost(
        servers=count,
        together_s=together_s,
        alone_s=alone_s,
        busy_s=busy_s,
        bsp_step_s=room.apart_s + together_s - (room.hidden_s(pushes_s) if others else 0.0),
        asp_step_s=max(room.apart_s + alone_s - (room.hidden_s(own_s) if others else 0.0), busy_s),
    )


def _own_s(
    network: Network, node: int, chosen: Sequence[int], parts: Sequence[float], num_bytes: float
) -> float:
    """What a worker's own push takes where nobody else pushes."""
    return sum(
        num_bytes * part / network.hop(node, server)[1]
        for server, part in zip(chosen, parts, strict=True)
        if server != node
    )
