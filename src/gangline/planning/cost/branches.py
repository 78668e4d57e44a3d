# SPDX-License-Identifier: Apache-2.0
"""What a nest of groups costs to exchange in: topologies, leaders and times, from the leaves up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.planning.cost.grouplinks import GroupLinks, LinkBook
from gangline.planning.cost.model import pipelined_s
from gangline.planning.cost.scales import FACTOR
from gangline.planning.structure.arrange import Arrangement, Arranger, Job, Style
from gangline.planning.structure.nest import NOBODY, Nest, NodeNumbers

if TYPE_CHECKING:
    from gangline.planning.cost.network import Network


class Branch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A nest of groups with everything that its exchange needs. Its own levels are `arrangement`."""

    name: str
    members: NodeNumbers
    """Nodes in ring order; nobody where there are branches below."""
    branches: tuple[Branch, ...]
    """In the order in which their leaders form the ring."""
    leader: int
    links: GroupLinks
    arrangement: Arrangement
    path_s: float
    """One unit through this and everything below."""
    bottleneck_s: float
    """How often a unit can follow another, through this and everything below."""

    @property
    def num_groups(self) -> int:
        """The groups that hold nodes."""
        if self.branches:
            return sum(branch.num_groups for branch in self.branches)
        levels = self.arrangement.levels
        return -(-len(self.members) // levels[0].size) if len(levels) > 1 else 1


class Coster:
    """Turns nests into branches for one network, style and job; `book` may be shared."""

    def __init__(self, network: Network, style: Style, job: Job, *, book: LinkBook) -> None:
        self._network = network
        self._job = job
        self._book = book
        self._arranger = Arranger(style, job)

    def exchange_s(self, branch: Branch) -> float:
        """All units, up and back."""
        return pipelined_s(branch.path_s, branch.bottleneck_s, num_units=self._job.num_units)

    def cost(self, nest: Nest, *, is_top: bool = True) -> Branch:
        """The fastest exchange in this structure."""
        if not nest.groups:
            return self._leaf(nest, is_top=is_top)
        below = [self.cost(group, is_top=False) for group in nest.groups]
        leaders = self._leaders(below)
        links = self._book.links(leaders)
        ranked = {int(node): i for i, node in enumerate(leaders)}
        branches = tuple(below[ranked[int(node)]] for node in links.order)
        arrangement = self._arranger.arrange(len(below), links, is_top=is_top)
        return Branch(
            name=nest.name,
            members=NOBODY,
            branches=branches,
            leader=self._speaker(links, arrangement, leaders),
            links=links,
            arrangement=arrangement,
            path_s=arrangement.path_s + max(branch.path_s for branch in below),
            bottleneck_s=max(
                self._follow_s(links, arrangement.bottleneck_s, branch) for branch in below
            ),
        )

    def _follow_s(self, links: GroupLinks, own_s: float, below: Branch) -> float:
        """How often units can follow each other through a level and one below it.

        A leader takes part in both. Over links of one magnitude they share its way out, and their
        times add up; otherwise the slower level leaves room for the other.
        """
        here, there = (self._link_s(one) for one in (links, below.links))
        is_alike = there > 0 and here / FACTOR <= there <= here * FACTOR
        return own_s + below.bottleneck_s if is_alike else max(own_s, below.bottleneck_s)

    def _link_s(self, links: GroupLinks) -> float:
        return links.ring.latency_s + links.ring.s_per_byte * self._job.num_bytes

    def _leaf(self, nest: Nest, *, is_top: bool) -> Branch:
        links = self._book.links(nest.members)
        arrangement = self._arranger.arrange(len(nest.members), links, is_top=is_top)
        return Branch(
            name=nest.name,
            members=links.order,
            branches=(),
            leader=self._speaker(links, arrangement, nest.members),
            links=links,
            arrangement=arrangement,
            path_s=arrangement.path_s,
            bottleneck_s=arrangement.bottleneck_s,
        )

    def _speaker(self, links: GroupLinks, arrangement: Arrangement, members: NodeNumbers) -> int:
        """The server, which holds the sum anyway, or the member with the best link and most room."""
        if arrangement.levels[-1].topology == "parameter-server" and len(members) > 1:
            return links.server
        return self._book.leader(members)

    def _leaders(self, below: list[Branch]) -> NodeNumbers:
        """One per branch; with links measured one by one, whoever reaches the others best."""
        leaders = np.array([branch.leader for branch in below])
        if not self._network.pairs:
            return leaders
        for i, branch in enumerate(below):
            servers = branch.arrangement.levels[-1].topology == "parameter-server"
            if not branch.branches and not servers:
                leaders[i] = self._book.leader(branch.members, away=np.delete(leaders, i))
                below[i] = msgspec.structs.replace(branch, leader=int(leaders[i]))
        return leaders
