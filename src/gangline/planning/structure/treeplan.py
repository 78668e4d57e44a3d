# SPDX-License-Identifier: Apache-2.0
"""From costed branches to the tree of a plan: names, leaders, and a reason for each group."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gangline.planning.cost.grouplinks import choose_leader
from gangline.planning.cost.model import all_reduce_s, level_s
from gangline.spec.plan import SOLO, GroupPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.planning.cost.branches import Branch
    from gangline.planning.cost.network import Network
    from gangline.planning.structure.arrange import Job, Level
    from gangline.planning.structure.nest import NodeNumbers


class TreeBuilder:
    """Builds the tree of one plan."""

    def __init__(self, network: Network, job: Job) -> None:
        self._network = network
        self._job = job

    def build(self, branch: Branch, *, is_top: bool = True, prefix: str = "") -> GroupPlan:
        """The group of a branch, with everything below."""
        name = f"{prefix}{branch.name}"
        if not branch.branches and len(branch.members) == 1:
            only = self._network.names[int(branch.members[0])]
            reason = "one node: there is nobody to exchange with at this level"
            return GroupPlan(name=name, topology=SOLO, leader=only, members=(only,), reason=reason)
        levels = branch.arrangement.levels
        if branch.branches:
            groups = [self.build(b, is_top=False, prefix=_inside(name)) for b in branch.branches]
            below = 0
        elif len(levels) > 1:
            groups = self._rings(branch, name)
            below = 1
        else:
            return self._group(branch, levels[0], name=name, is_top=is_top, nodes=branch.members)
        for number, level in enumerate(levels[below:-1]):
            parts = _parts(len(groups), level.size)
            groups = [
                self._group(
                    branch, level, name=f"{name}, level {number + 1}.{i}", groups=groups[low:high]
                )
                for i, (low, high) in enumerate(parts)
            ]
        return self._group(branch, levels[-1], name=name, is_top=is_top, groups=groups)

    def _rings(self, branch: Branch, name: str) -> list[GroupPlan]:
        """The smallest groups of a branch that is cut into several."""
        level = branch.arrangement.levels[0]
        return [
            self._group(branch, level, name=f"{name}, part {i}", nodes=branch.members[low:high])
            for i, (low, high) in enumerate(_parts(len(branch.members), level.size))
        ]

    def _group(
        self,
        branch: Branch,
        level: Level,
        *,
        name: str,
        is_top: bool = False,
        nodes: NodeNumbers | None = None,
        groups: Sequence[GroupPlan] = (),
    ) -> GroupPlan:
        names = self._network.names
        members = () if nodes is None else tuple(names[i] for i in nodes.tolist())
        speakers = members or tuple(group.leader for group in groups)
        link = branch.links.of(level.topology)
        return GroupPlan(
            name=name,
            topology=level.topology if len(speakers) > 1 else SOLO,
            leader=self._leader(branch, speakers, nodes),
            members=members,
            groups=tuple(groups),
            latency_s=link.latency_s,
            bytes_per_s=1 / link.s_per_byte if link.s_per_byte > 0 else 0.0,
            unit_s=level.unit_s,
            reason=self._reason(branch, level, len(speakers), is_top=is_top),
        )

    def _leader(self, branch: Branch, speakers: tuple[str, ...], nodes: NodeNumbers | None) -> str:
        own = self._network.names[branch.leader]
        if own in speakers or nodes is None:
            return own if own in speakers else speakers[0]
        leader = choose_leader(self._network, nodes, away=None, num_bytes=self._job.num_bytes)
        return self._network.names[leader]

    def _reason(self, branch: Branch, level: Level, count: int, *, is_top: bool) -> str:
        if count <= 1:
            return "one member: there is nobody to exchange with at this level"
        others = []
        for topology in ("ring", "parameter-server"):
            if topology != level.topology:
                unit_s = self._unit_s(branch, topology, count, is_top=is_top)
                others.append(f"{topology} {duration(unit_s)}")
        return (
            f"{level.topology} of {count}: {duration(level.unit_s)} per unit of "
            f"{size(self._job.num_bytes)} (against {', '.join(others)})"
        )

    def _unit_s(self, branch: Branch, topology: str, count: int, *, is_top: bool) -> float:
        link = branch.links.of(topology)
        if is_top:
            return all_reduce_s(topology, count, num_bytes=self._job.num_bytes, link=link)
        return level_s(topology, count, num_bytes=self._job.num_bytes, link=link).total_s


def _inside(name: str) -> str:
    return "" if name == "all" else f"{name} > "


def _parts(count: int, size: int) -> list[tuple[int, int]]:
    """As few parts of at most `size` as possible, as equal as possible."""
    edges = np.linspace(0, count, math.ceil(count / size) + 1).astype(int).tolist()
    return list(pairwise(edges))


def duration(seconds: float) -> str:
    """A time for people, with three digits."""
    if seconds == 0:
        return "0 s"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def size(num_bytes: float) -> str:
    """A number of bytes for people."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.3g} {unit}"
    return f"{num_bytes:.3g} B"
