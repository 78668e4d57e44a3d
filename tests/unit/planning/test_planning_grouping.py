# SPDX-License-Identifier: Apache-2.0
"""Grouping: by places, by measured pairs, by algorithm 1 of paper 000."""

from __future__ import annotations

import numpy as np
import pytest
from planning_cases import LAN, LENET, WAN, node, pairs_of, table_1, two_sites

from gangline.planning.cost.network import resolve
from gangline.planning.papers.grouping import by_algorithm_1, separate
from gangline.planning.structure.grouping import by_links, units
from gangline.planning.structure.nest import flat, square_root
from gangline.planning.synthetic import Shape, synthesize
from gangline.spec.errors import UsageError
from gangline.spec.profile import ClusterProfile, Link, Zone


def leaves(profile, group=by_links):
    network = resolve(profile, LENET)
    nest = group(network, np.arange(len(network.names)), num_bytes=250e3)
    return [{network.names[i] for i in leaf.members} for leaf in nest.leaves()]


def test_sites_behind_a_slow_link_are_groups():
    assert sorted(map(sorted, leaves(two_sites()))) == [[f"{s}{i}" for i in range(4)] for s in "ab"]


def test_places_with_like_links_are_one_group():
    assert len(leaves(two_sites(between=Link(latency_s=1.5e-4, bytes_per_s=1e8)))) == 1


def test_unlike_speeds_do_not_split_a_group():
    nodes = tuple(node(f"n{i}", 10.0**-i) for i in range(4))
    profile = ClusterProfile(nodes=nodes, zones=(Zone(place="", link=LAN),))
    assert leaves(profile) == [{"n0", "n1", "n2", "n3"}]


def test_like_nodes_of_a_group_are_used_or_left_out_together():
    nodes = tuple(node(f"n{i}", cost) for i, cost in enumerate((1e-3, 1.2e-3, 2e-2, 1e-3)))
    network = resolve(ClusterProfile(nodes=nodes, zones=(Zone(place="", link=LAN),)), LENET)
    found = units(flat(np.arange(4)), network.cost_at(1.0))
    assert [unit.tolist() for unit in found] == [[0, 1, 3], [2]]


def test_nodes_with_slow_links_of_their_own_are_a_group():
    nodes = [node(f"n{i}") for i in range(4)] + [node(f"w{i}", access=WAN) for i in range(2)]
    profile = ClusterProfile(nodes=tuple(nodes), zones=(Zone(place="", link=LAN),))
    assert sorted(map(sorted, leaves(profile))) == [["n0", "n1", "n2", "n3"], ["w0", "w1"]]


def test_measured_pairs_are_clustered_whatever_their_order():
    names = ["a0", "b0", "a1", "b1", "b2", "a2"]
    profile = ClusterProfile(
        nodes=tuple(map(node, names)),
        pairs=pairs_of(names, lambda i, j: LAN if names[i][0] == names[j][0] else WAN),
    )
    assert sorted(map(sorted, leaves(profile))) == [["a0", "a1", "a2"], ["b0", "b1", "b2"]]


def test_one_bad_link_does_not_split_a_group():
    names = [f"n{i}" for i in range(5)]
    profile = ClusterProfile(
        nodes=tuple(map(node, names)),
        pairs=pairs_of(names, lambda i, j: WAN if {i, j} == {1, 3} else LAN),
    )
    assert len(leaves(profile)) == 1


@pytest.mark.parametrize("seed", range(5))
def test_groups_do_not_change_with_noise(seed):
    profile = two_sites(5)
    rng = np.random.default_rng(seed)

    def noisy(link):
        return Link(
            latency_s=link.latency_s * rng.uniform(0.75, 1.3),
            bytes_per_s=link.bytes_per_s * rng.uniform(0.75, 1.3),
        )

    zones = tuple(Zone(place=zone.place, link=noisy(zone.link)) for zone in profile.zones)
    again = ClusterProfile(nodes=profile.nodes, zones=zones)
    assert leaves(again) == leaves(profile)


def test_a_zone_without_nodes_is_named():
    zones = (Zone(place="", link=LAN), Zone(place="attic", link=LAN))
    profile = ClusterProfile(nodes=(node("n0", place="cellar"),), zones=zones)
    with pytest.raises(UsageError, match="zone 'attic' holds no node; the nodes are at 'cellar'"):
        resolve(profile, LENET)


# --- paper 000's algorithm 1 ------------------------------------------------------------------------


def literal_algorithm_1(magnitudes):
    """The loops as printed; a worker without a match opens a group."""
    ids = [0]
    for i in range(1, len(magnitudes)):
        ids.append(max(ids) + 1)
        for j in range(i - 1, -1, -1):
            if magnitudes[i] == magnitudes[j]:
                ids[i] = ids[j]
    return ids


@pytest.mark.parametrize("seed", range(10))
def test_separation_is_that_of_the_printed_loops(seed):
    costs = 10 ** np.random.default_rng(seed).uniform(-6, 0, 30)
    renumbered = {}
    expected = [
        renumbered.setdefault(label, len(renumbered))
        for label in literal_algorithm_1(np.floor(np.log10(costs)).tolist())
    ]
    assert separate(costs).tolist() == expected


def test_algorithm_1_separates_table_1_by_magnitude():
    found = leaves(table_1(), by_algorithm_1)
    assert {f"node{i}" for i in range(8)} in found
    assert len(found) >= 2


def test_algorithm_1_mixes_sites_whose_inner_links_are_alike():
    mixed = leaves(two_sites(), by_algorithm_1)
    assert any({"a1", "b1"} <= group for group in mixed)


def test_square_root_groups():
    nest = square_root(np.arange(100))
    assert [len(leaf.members) for leaf in nest.leaves()] == [10] * 10


def test_three_tiers_are_three_levels():
    profile = synthesize(Shape(sites=2, racks=3, nodes=4), rng=np.random.default_rng(0))
    network = resolve(profile, LENET)
    nest = by_links(network, np.arange(24), num_bytes=4e6)
    assert [len(site.groups) for site in nest.groups] == [3, 3]
    assert [len(leaf.members) for leaf in nest.leaves()] == [4] * 6
