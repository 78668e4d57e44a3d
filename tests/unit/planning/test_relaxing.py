# SPDX-License-Identifier: Apache-2.0
"""What `--sync auto` comes to, and which groups train apart, from what a cluster file says."""

from __future__ import annotations

from gangline.planning.known import known_profile
from gangline.planning.structure.relaxing import SLOW_EXCHANGE_S, choose_sync, groups_by_place
from gangline.spec.cluster import Cluster, NetworkLink, Node
from gangline.spec.sync import FLEXIBLE, IN_STEP

MEGABYTE = 1_000_000


def two_sites(bytes_per_s: float) -> Cluster:
    nodes = tuple(
        Node(name=f"{place}{i}", place=place, bytes_per_s=100e6) for place in "ab" for i in range(2)
    )
    return Cluster(nodes=nodes, links=(NetworkLink(between=("a", "b"), bytes_per_s=bytes_per_s),))


def test_a_slow_link_makes_groups_train_apart() -> None:
    choice = choose_sync(known_profile(two_sites(10e6)), MEGABYTE, levels=1)
    assert choice.sync.kind == FLEXIBLE
    assert choice.exchange_s > SLOW_EXCHANGE_S
    assert "over the slowest link" in choice.reason


def test_fast_links_keep_all_in_step() -> None:
    choice = choose_sync(known_profile(two_sites(100e6)), MEGABYTE, levels=1)
    assert choice.sync == IN_STEP


def test_nothing_known_keeps_all_in_step() -> None:
    assert choose_sync(None, MEGABYTE, levels=1).sync == IN_STEP
    alone = known_profile(Cluster(nodes=(Node(name="a"), Node(name="b"))))
    assert choose_sync(alone, MEGABYTE, levels=1).sync == IN_STEP


def test_places_are_groups() -> None:
    structure = groups_by_place(known_profile(two_sites(10e6)))
    assert str(structure) == "ring(ring(0*, 1), ring(2*, 3))"


def test_nodes_without_places_are_no_groups() -> None:
    assert groups_by_place(known_profile(Cluster(nodes=(Node(name="a"), Node(name="b"))))) is None
    together = Cluster(nodes=(Node(name="a", place="x"), Node(name="b", place="x")))
    assert groups_by_place(known_profile(together)) is None
