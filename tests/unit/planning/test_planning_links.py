# SPDX-License-Identifier: Apache-2.0
"""Unlike links in the cost model: a ring over good and bad ones, a server whose ways are shared."""

from __future__ import annotations

import numpy as np
import pytest
from planning_cases import LENET, planned

from gangline.planning.cost.grouplinks import group_links, ring_cost, star_cost
from gangline.planning.cost.network import Network, resolve
from gangline.planning.cost.treecost import exchange_s
from gangline.planning.known import known_profile
from gangline.spec.cluster import Cluster, NetworkLink, Node
from gangline.spec.exchange.structure import SERVER, Structure
from gangline.spec.profile import ClusterProfile, Link, NodeProfile, Zone

GRADIENT_BYTES = LENET.gradient_bytes


def sites() -> Cluster:
    """Three nodes here, three there, and a slow link between."""
    nodes = [
        Node(name=f"{place}{i}", place=place, bytes_per_s=25e6)
        for place in ("here", "there")
        for i in range(3)
    ]
    link = NetworkLink(between=("here", "there"), bytes_per_s=2.5e6, delay_s=0.005)
    return Cluster(nodes=tuple(nodes), links=(link,))


def network_of(cluster: Cluster) -> Network:
    local = Link(latency_s=0.0, bytes_per_s=1e12)
    return resolve(known_profile(cluster, local=local), LENET)


def test_a_ring_knows_its_worst_link_and_its_mean_one() -> None:
    cost = ring_cost(network_of(sites()), range(6), gamma=0.0)
    assert cost.latency_s == 0.005
    assert cost.mean_latency_s == pytest.approx(2 * 0.005 / 6)
    assert cost.s_per_byte == pytest.approx(1 / 2.5e6)
    assert cost.mean_s_per_byte == pytest.approx((2 / 2.5e6 + 4 / 25e6) / 6)


def test_a_ring_through_zones_costs_what_one_through_pairs_costs() -> None:
    nodes = tuple(
        NodeProfile(name=f"{place}{i}", per_sample_s=1.0, place=place)
        for place in ("here", "there")
        for i in range(3)
    )
    zones = (
        Zone(place="", link=Link(latency_s=0.005, bytes_per_s=2.5e6)),
        Zone(place="here", link=Link(latency_s=0.0, bytes_per_s=25e6)),
        Zone(place="there", link=Link(latency_s=0.0, bytes_per_s=25e6)),
    )
    by_zone = group_links(
        resolve(ClusterProfile(nodes=nodes, zones=zones), LENET),
        np.arange(6),
        num_bytes=GRADIENT_BYTES,
    )
    assert by_zone.ring == pytest.approx(ring_cost(network_of(sites()), range(6), gamma=0.0))


def test_those_who_reach_their_server_by_one_link_share_it() -> None:
    cost = star_cost(network_of(sites()), range(6), server=0, gamma=0.0)
    assert cost.server_s_per_byte == pytest.approx(3 / 2.5e6 / 5)
    star = Structure(topology=SERVER, leader=0, members=tuple(range(6)))
    assert exchange_s(network_of(sites()), LENET, star) == pytest.approx(
        2 * (0.005 + 3 * GRADIENT_BYTES / 2.5e6)
    )


def test_a_server_with_a_good_link_of_its_own_serves_many() -> None:
    leaves = [Node(name=f"leaf{i}", bytes_per_s=10e6, delay_s=0.004) for i in range(5)]
    cluster = Cluster(nodes=(Node(name="hub", bytes_per_s=50e6), *leaves))
    plan = planned(known_profile(cluster), everybody=True)
    assert (plan.root.topology, plan.root.leader) == ("parameter-server", "hub")


def test_a_ring_is_led_around_a_bad_link() -> None:
    link = NetworkLink(between=("n1", "n2"), bytes_per_s=1e5)
    nodes = tuple(Node(name=f"n{i}", bytes_per_s=12.5e6) for i in range(5))
    plan = planned(known_profile(Cluster(nodes=nodes, links=(link,))), everybody=True)
    ring = plan.root.members
    assert plan.root.topology == "ring"
    assert abs(ring.index("n1") - ring.index("n2")) not in (1, len(ring) - 1)
