# SPDX-License-Identifier: Apache-2.0
"""What a given structure costs to exchange in: for one that is there already, whoever thought of it.

The planner's own candidates come out of `branches`, which chooses orders and leaders by itself. Here
they are given, and each group pays for the worst link that it uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gangline.planning.cost.grouplinks import ring_cost, star_cost
from gangline.planning.cost.model import LinkCost, all_reduce_s, level_s, pipelined_s
from gangline.planning.cost.network import message_bytes
from gangline.planning.cost.scales import FACTOR
from gangline.spec.exchange.structure import SERVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.planning.cost.network import Network
    from gangline.spec.exchange.structure import Structure
    from gangline.spec.workload import Workload


class _Cost(NamedTuple):
    path_s: float
    bottleneck_s: float
    link_s: float
    """One message over the worst link."""


def exchange_s(network: Network, workload: Workload, structure: Structure) -> float:
    """All units of a step through a structure whose workers are the network's node numbers."""
    cost = _TreeCost(network, message_bytes(workload)).of(structure, is_top=True)
    codec_s = workload.gradient_bytes * workload.codec_s_per_byte
    return pipelined_s(cost.path_s, cost.bottleneck_s, num_units=workload.num_units) + codec_s


class _TreeCost:
    def __init__(self, network: Network, num_bytes: float) -> None:
        self._network = network
        self._num_bytes = num_bytes

    def of(self, structure: Structure, *, is_top: bool) -> _Cost:
        speakers = structure.speakers
        below = [self.of(group, is_top=False) for group in structure.groups]
        link = self._link(structure, speakers)
        topology, count, size = structure.topology, len(speakers), self._num_bytes
        if is_top:
            own_s = all_reduce_s(topology, count, num_bytes=size, link=link)
        else:
            own_s = level_s(topology, count, num_bytes=size, link=link).total_s
        link_s = link.latency_s + link.s_per_byte * size if count > 1 else 0.0
        return _Cost(
            path_s=own_s + max((one.path_s for one in below), default=0.0),
            bottleneck_s=max((_follow_s(own_s, link_s, one) for one in below), default=own_s),
            link_s=link_s,
        )

    def _link(self, structure: Structure, speakers: Sequence[int]) -> LinkCost:
        gamma = float(self._network.reduce_s_per_byte[list(speakers)].max())
        if len(speakers) == 1:
            return LinkCost(0.0, 0.0, gamma)
        if structure.topology == SERVER:
            return star_cost(self._network, speakers, server=structure.leader, gamma=gamma)
        return ring_cost(self._network, speakers, gamma=gamma)


def _follow_s(own_s: float, link_s: float, below: _Cost) -> float:
    """How often units can follow each other through a level and one below it, as in `branches`."""
    is_alike = below.link_s > 0 and link_s / FACTOR <= below.link_s <= link_s * FACTOR
    return own_s + below.bottleneck_s if is_alike else max(own_s, below.bottleneck_s)
