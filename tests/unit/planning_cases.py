# SPDX-License-Identifier: Apache-2.0
"""Clusters and strategies that the planning tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

from gangline.planning.planner import PlanOptions, make_plan
from gangline.spec.profile import ClusterProfile, Link, NodeProfile, PairLink, Zone
from gangline.spec.workload import Workload

if TYPE_CHECKING:
    from gangline.spec.plan import Plan

LAN = Link(latency_s=1e-4, bytes_per_s=1.2e8)
WAN = Link(latency_s=5e-3, bytes_per_s=1.25e6)
LENET = Workload(global_batch=1024, gradient_bytes=250e3)


def planned(profile: ClusterProfile, workload: Workload = LENET, **options: Any) -> Plan:
    return make_plan(
        profile, workload, rng=np.random.default_rng(0), options=PlanOptions(**options)
    )


def node(name: str, cost: float = 1e-3, place: str = "", **more: Any) -> NodeProfile:
    return NodeProfile(name=name, per_sample_s=cost, fixed_s=2 * cost, place=place, **more)


def table_1() -> ClusterProfile:
    """Paper 000's table I: 8 nodes of one magnitude, 6 of the next behind a slow connection."""
    costs = [1e-4] * 4 + [1.5e-4] * 4 + [1.2e-3] * 3 + [2.5e-3] * 3
    nodes = [
        node(f"node{i}", cost, place="near" if i < 8 else "far") for i, cost in enumerate(costs)
    ]
    zones = (
        Zone(place="", link=WAN),
        Zone(place="near", link=LAN),
        Zone(place="far", link=LAN),
    )
    return ClusterProfile(nodes=tuple(nodes), zones=zones)


def two_sites(count: int = 4, *, between: Link = WAN, cost: float = 1e-3) -> ClusterProfile:
    nodes = [node(f"{site}{i}", cost, place=site) for site in "ab" for i in range(count)]
    zones = [Zone(place="", link=between), *(Zone(place=site, link=LAN) for site in "ab")]
    return ClusterProfile(nodes=tuple(nodes), zones=tuple(zones))


def pairs_of(names: list[str], link: Any) -> tuple[PairLink, ...]:
    """Every pair, with the link that `link(i, j)` gives."""
    return tuple(
        PairLink(source=names[i], target=names[j], there=link(i, j))
        for i in range(len(names))
        for j in range(i)
    )


@st.composite
def clusters(draw: st.DrawFn) -> ClusterProfile:
    """One to three sites of one to four nodes with unlike speeds, links and memories."""
    costs = st.floats(1e-5, 1e-1)
    links = st.builds(Link, latency_s=st.floats(0, 1e-2), bytes_per_s=st.floats(1e6, 1e10))
    nodes, zones = [], [Zone(place="", link=draw(links))]
    for site in range(draw(st.integers(1, 3))):
        zones.append(Zone(place=f"s{site}", link=draw(links)))
        for number in range(draw(st.integers(1, 4))):
            access = draw(st.none() | links)
            nodes.append(node(f"s{site}n{number}", draw(costs), place=f"s{site}", access=access))
    return ClusterProfile(nodes=tuple(nodes), zones=tuple(zones))


workloads = st.builds(
    Workload,
    global_batch=st.integers(1, 3000),
    gradient_bytes=st.sampled_from([0.0, 1e4, 1e6, 1e8]),
    overlap=st.sampled_from([0.0, 0.6, 1.0]),
    minimum_share=st.sampled_from([1, 2]),
)
