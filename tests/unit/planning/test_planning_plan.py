# SPDX-License-Identifier: Apache-2.0
"""Plans: what is chosen and why, properties that hold for every cluster, and bad input."""

from __future__ import annotations

import itertools
import re

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planning_cases import (
    LAN,
    LENET,
    WAN,
    clusters,
    node,
    pairs_of,
    planned,
    table_1,
    two_sites,
    workloads,
)

from gangline.planning.cost.network import resolve
from gangline.planning.structure.candidates import BY_GROUPS, FLAT_RING, FLAT_SERVER, Evaluator
from gangline.planning.structure.grouping import by_links
from gangline.planning.synthetic import Shape, synthesize
from gangline.spec.errors import UsageError
from gangline.spec.profile import ClusterProfile, Link, NodeProfile, Zone
from gangline.spec.workload import Workload

FAST = Link(latency_s=1e-5, bytes_per_s=1e10)


def faster(profile, *, speed=1.0, links=1.0):
    def link(one):
        return one and Link(latency_s=one.latency_s / links, bytes_per_s=one.bytes_per_s * links)

    return ClusterProfile(
        nodes=tuple(
            msgspec.structs.replace(
                n,
                per_sample_s=n.per_sample_s / speed,
                fixed_s=n.fixed_s / speed,
                access=link(n.access),
            )
            for n in profile.nodes
        ),
        zones=tuple(Zone(place=z.place, link=link(z.link)) for z in profile.zones),
    )


# --- what is chosen ----------------------------------------------------------------------------------


@pytest.mark.parametrize("grouping", ["robust", "paper"])
def test_the_groups_a_magnitude_slower_behind_a_slow_link_are_left_out(grouping):
    plan = planned(table_1(), grouping=grouping)
    assert sorted(plan.nodes) == sorted(f"node{i}" for i in range(8))
    spared = {name for spares in plan.spares for name in spares.nodes}
    assert spared == {f"node{i}" for i in range(8, 14)}
    assert any("with these the step would take" in spares.reason for spares in plan.spares)


def test_the_same_groups_are_used_when_the_link_is_fast():
    zones = tuple(Zone(place=place, link=FAST) for place in ("", "near", "far"))
    profile = ClusterProfile(nodes=table_1().nodes, zones=zones)
    assert len(planned(profile).nodes) == 14


def test_a_slow_link_between_sites_makes_a_hierarchy():
    plan = planned(two_sites(6, cost=0.1), LENET)
    assert plan.chosen.startswith("by groups")
    assert len(plan.nodes) == 12
    assert plan.root.num_levels == 2
    assert {len(group.members) for group in plan.root.groups} == {6}


def test_one_node_works_alone_when_exchanging_costs_more():
    plan = planned(two_sites(2, cost=1e-6), Workload(global_batch=8, gradient_bytes=1e9))
    assert len(plan.nodes) == 1
    assert plan.root.topology == "solo"
    assert plan.prediction.exchange_s == 0


def test_a_parameter_server_serves_a_star():
    hub = node("hub", access=Link(latency_s=1e-3, bytes_per_s=1e10))
    spokes = [node(f"n{i}", access=Link(latency_s=1e-3, bytes_per_s=1e8)) for i in range(8)]
    profile = ClusterProfile(nodes=(*spokes, hub), zones=(Zone(place="", link=FAST),))
    plan = planned(profile)
    assert plan.root.topology == "parameter-server"
    assert plan.root.leader == "hub"


def test_a_ring_goes_around_a_bad_link():
    names = [f"n{i}" for i in range(6)]
    profile = ClusterProfile(
        nodes=tuple(node(name, 0.01) for name in names),
        pairs=pairs_of(names, lambda i, j: WAN if abs(i - j) == 1 else LAN),
    )
    plan = planned(profile)
    assert plan.root.topology == "ring"
    assert plan.root.bytes_per_s == pytest.approx(LAN.bytes_per_s)


def test_large_rings_are_cut_by_the_model():
    nodes = tuple(node(f"n{i}", 0.1) for i in range(400))
    profile = ClusterProfile(nodes=nodes, zones=(Zone(place="", link=LAN),))
    plan = planned(profile, Workload(global_batch=4000, gradient_bytes=1e5))
    assert plan.root.num_levels >= 2
    assert max(len(leaf.members) for leaf in plan.root.leaves()) < 100


def test_the_leader_has_the_best_link_and_then_the_most_speed():
    nodes = [
        node("slow-link", 1e-3, place="a", access=Link(latency_s=1e-4, bytes_per_s=5e7)),
        node("slow", 9e-3, place="a"),
        node("fast", 4e-3, place="a"),
        *(node(f"b{i}", 4e-3, place="b") for i in range(3)),
    ]
    zones = (Zone(place="", link=WAN), Zone(place="a", link=LAN), Zone(place="b", link=LAN))
    plan = planned(
        ClusterProfile(nodes=tuple(nodes), zones=zones),
        Workload(global_batch=100_000, gradient_bytes=1e4),
        structure="by-groups",
    )
    leaders = {leaf.leader for leaf in plan.root.leaves()}
    assert "fast" in leaders


@pytest.mark.parametrize(
    ("workload", "more", "kind"),
    [
        (Workload(global_batch=4096, gradient_bytes=1e4), {}, "compute-bound"),
        (Workload(global_batch=36, gradient_bytes=1e3, minimum_share=9), {}, "compute-bound"),
        (Workload(global_batch=16, gradient_bytes=1e8), {}, "communication-bound"),
        (
            Workload(global_batch=64, gradient_bytes=1e3, sample_bytes=1e6, model_bytes=0),
            {"memory_bytes": 17e6},
            "memory-bound",
        ),
        (
            Workload(global_batch=64, gradient_bytes=1e3, traffic_bytes_per_sample=9e6),
            {"memory_bytes_per_s": 1e10},
            "memory-bound",
        ),
    ],
)
def test_the_kind_of_job_is_named(workload, more, kind):
    nodes = [node(f"n{i}", 1e-3, **more) for i in range(3)] + [node("m", 8e-3)]
    profile = ClusterProfile(nodes=tuple(nodes), zones=(Zone(place="", link=LAN),))
    plan = planned(profile, workload, structure="flat-ring", everybody=True)
    assert plan.kind == kind
    assert plan.reasons[0].startswith(kind)


def test_the_parts_of_a_step_add_up_in_words():
    workload = Workload(global_batch=64, gradient_bytes=1e6, other_s=0.0736)
    plan = planned(
        ClusterProfile(nodes=(node("a"), node("b")), zones=(Zone(place="", link=LAN),)), workload
    )
    (reason,) = [one for one in plan.reasons if "hidden" in one]
    step_ms, *parts_ms = (
        float(one) for one in re.findall(r"([\d.]+) (?:ms|s)", reason.split(":")[1])
    )
    assert step_ms == pytest.approx(parts_ms[0] + parts_ms[1] - parts_ms[2] + parts_ms[3], rel=0.01)
    assert reason.endswith("+ 73.6 ms besides")
    assert "(1 unit," in reason


def test_a_structure_can_be_asked_for():
    profile = two_sites(8, cost=0.1)
    for structure, name in (
        ("flat-ring", "flat ring"),
        ("flat-server", "flat parameter server"),
        ("square-root", "square root of n"),
        ("random", "random formation"),
        ("by-groups", "by groups"),
    ):
        assert planned(profile, structure=structure).chosen.startswith(name)


def test_compression_makes_the_exchange_shorter():
    profile = two_sites(4, cost=0.1)
    plain = Workload(global_batch=64, gradient_bytes=1e8)
    small = msgspec.structs.replace(plain, compression=0.1)
    coded = msgspec.structs.replace(small, codec_s_per_byte=1e-9)
    times = [planned(profile, w).prediction.step_s for w in (plain, coded, small)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[2]


# --- properties --------------------------------------------------------------------------------------


def few(profile, most=7):
    """A cluster so small that every set of nodes is tried: no tie is decided by position."""
    nodes = profile.nodes[:most]
    zones = tuple(z for z in profile.zones if any(n.place.startswith(z.place) for n in nodes))
    return ClusterProfile(nodes=nodes, zones=zones)


def check_tree(group):
    assert group.leader in group.speakers
    assert group.reason
    for below in group.groups:
        check_tree(below)


@settings(deadline=None, max_examples=30)
@given(profile=clusters(), workload=workloads, grouping=st.sampled_from(["robust", "paper"]))
def test_every_plan_is_whole_and_no_alternative_is_faster(profile, workload, grouping):
    plan = planned(profile, workload, grouping=grouping)
    assert sum(plan.shares) == workload.global_batch
    assert min(plan.shares) >= min(workload.minimum_share, workload.global_batch)
    spared = [name for spares in plan.spares for name in spares.nodes]
    assert sorted([*plan.nodes, *spared]) == sorted(n.name for n in profile.nodes)
    assert [n for leaf in plan.root.leaves() for n in leaf.members] == list(plan.nodes)
    best = plan.prediction.step_s
    assert all(one.prediction.step_s >= best for one in plan.alternatives)
    assert plan.chosen in [one.name for one in plan.alternatives]
    check_tree(plan.root)


@settings(deadline=None, max_examples=20)
@given(profile=clusters(), workload=workloads, seed=st.integers(0, 99))
def test_renaming_and_reordering_change_nothing(profile, workload, seed):
    profile = few(profile)
    order = np.random.default_rng(seed).permutation(len(profile.nodes))
    nodes = tuple(
        msgspec.structs.replace(profile.nodes[i], name=f"x{profile.nodes[i].name}") for i in order
    )
    again = planned(ClusterProfile(nodes=nodes, zones=profile.zones[::-1]), workload)
    plan = planned(profile, workload)
    # These two are formed in the order in which the nodes are listed.
    assume(not any(p.chosen.startswith(("random", "square")) for p in (plan, again)))
    assert again.prediction.step_s == pytest.approx(plan.prediction.step_s)
    assert again.kind == plan.kind
    assert sorted(again.shares) == sorted(plan.shares)


@settings(deadline=None, max_examples=20)
@given(profile=clusters(), workload=workloads, factor=st.floats(1, 20))
def test_faster_nodes_or_links_never_make_a_slower_plan(profile, workload, factor):
    plan = planned(profile, workload).prediction.step_s
    for better in (faster(profile, speed=factor), faster(profile, links=factor)):
        assert planned(better, workload).prediction.step_s <= plan * (1 + 1e-9)


@settings(deadline=None, max_examples=15)
@given(profile=clusters(), workload=workloads)
def test_no_set_of_nodes_is_better(profile, workload):
    """All sets of up to six nodes, in all three structures that need no drawing."""
    profile = few(profile, 6)
    network = resolve(profile, workload)
    everybody = np.arange(len(network.names))
    nest = by_links(network, everybody, num_bytes=workload.gradient_bytes)
    evaluator = Evaluator(network, workload, nest=nest, topologies=("ring", "parameter-server"))
    best = min(
        evaluator.candidate(structure, evaluator.cut(np.array(some)), crowd="").prediction.step_s
        for count in range(1, len(everybody) + 1)
        for some in itertools.combinations(everybody, count)
        for structure in (BY_GROUPS, FLAT_RING, FLAT_SERVER)
    )
    assert planned(profile, workload).prediction.step_s <= best * (1 + 1e-9)


def test_few_nodes_are_grouped_for_messages_of_any_size():
    """The best plan needs s1n2, which has a link of its own, apart from the others of its site."""
    quick, slow = (
        {"per_sample_s": 1 / 16, "fixed_s": 1 / 8},
        {"per_sample_s": 3 / 32, "fixed_s": 3 / 16},
    )
    nodes = (
        NodeProfile(name="s0n0", place="s0", **quick),
        NodeProfile(name="s1n0", place="s1", **slow),
        NodeProfile(name="s1n1", place="s1", **slow),
        NodeProfile(
            name="s1n2", place="s1", **quick, access=Link(latency_s=0.0, bytes_per_s=3.6e8)
        ),
    )
    zones = (
        Zone(place="", link=Link(latency_s=0.0, bytes_per_s=2.4e8)),
        Zone(place="s0", link=Link(latency_s=0.0, bytes_per_s=1e6)),
        Zone(place="s1", link=Link(latency_s=1 / 512, bytes_per_s=2.2e9)),
    )
    workload = Workload(global_batch=20, gradient_bytes=1e8, overlap=0.0)
    plan = planned(ClusterProfile(nodes=nodes, zones=zones), workload)
    assert set(plan.nodes) == {"s1n0", "s1n1", "s1n2"}
    assert plan.prediction.step_s < 1.1


def test_renaming_many_unlike_nodes_renames_the_plan():
    rng = np.random.default_rng(5)
    nodes = [
        node(f"n{i}", cost, place="ab"[i % 2])
        for i, cost in enumerate(10 ** rng.uniform(-3, -1, 40))
    ]
    zones = two_sites().zones
    plan = planned(ClusterProfile(nodes=tuple(nodes), zones=zones))
    renamed = [
        msgspec.structs.replace(n, name=f"x{n.name}")
        for n in (nodes[i] for i in rng.permutation(40))
    ]
    again = planned(ClusterProfile(nodes=tuple(renamed), zones=zones))
    shares = dict(zip(plan.nodes, plan.shares, strict=True))
    assert {f"x{name}": share for name, share in shares.items()} == dict(
        zip(again.nodes, again.shares, strict=True)
    )
    assert again.root.leader == f"x{plan.root.leader}"


def test_a_plan_survives_its_file(tmp_path):
    plan = planned(two_sites())
    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(plan))
    assert type(plan).from_file(path) == plan


def test_ten_thousand_nodes_need_no_table_of_pairs():
    profile = synthesize(Shape(sites=4, racks=25, nodes=100), rng=np.random.default_rng(0))
    plan = planned(profile, Workload(global_batch=640_000, gradient_bytes=1e8))
    assert sum(plan.shares) == 640_000


# --- bad input ---------------------------------------------------------------------------------------


def test_a_cluster_that_is_not_connected_is_planned_in_part():
    zones = tuple(zone for zone in two_sites().zones if zone.place)
    nodes = (*two_sites().nodes, node("a4", place="a"))
    plan = planned(ClusterProfile(nodes=nodes, zones=zones))
    assert sorted(plan.nodes) == ["a0", "a1", "a2", "a3", "a4"]
    assert any("not connected: 4 nodes have no link" in reason for reason in plan.reasons)


def test_nodes_without_any_link_work_alone():
    plan = planned(ClusterProfile(nodes=(node("n0"), node("n1", 5e-4))))
    assert plan.nodes == ("n1",)


def test_a_batch_below_the_number_of_nodes_goes_to_the_fastest():
    nodes = tuple(node(f"n{i}", (i + 1) * 1e-1) for i in range(8))
    profile = ClusterProfile(nodes=nodes, zones=(Zone(place="", link=FAST),))
    plan = planned(profile, Workload(global_batch=3, gradient_bytes=1e3))
    assert sum(plan.shares) == 3
    assert set(plan.nodes) <= {"n0", "n1", "n2"}
    assert any("a batch of 3 feeds at most 3 of 8 nodes" in reason for reason in plan.reasons)


def test_a_node_too_small_for_the_model_is_a_spare():
    nodes = (node("big", memory_bytes=1e9), node("small", memory_bytes=1e5))
    profile = ClusterProfile(nodes=nodes, zones=(Zone(place="", link=LAN),))
    plan = planned(profile)
    assert plan.nodes == ("big",)
    assert "1 nodes cannot hold the model and one sample, which need 1 MB" in plan.spares[0].reason


def test_a_model_too_large_for_all_is_refused():
    profile = ClusterProfile(nodes=(node("n0", memory_bytes=1e5),))
    with pytest.raises(UsageError, match=r"no node can hold the model: it needs 1 MB .* 100 kB"):
        planned(profile)


def test_a_batch_too_large_for_the_memory_is_refused():
    profile = ClusterProfile(nodes=(node("n0", memory_bytes=3e6),))
    workload = msgspec.structs.replace(LENET, sample_bytes=1e6)
    with pytest.raises(UsageError, match=r"1024 samples does not fit.* room for 2; lower"):
        planned(profile, workload)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grouping": "magic"}, "no grouping 'magic'; there are robust, paper"),
        ({"structure": "flat"}, "no structure 'flat'; there are auto"),
        ({"topologies": ("star",)}, "no topology 'star'"),
        ({"topologies": ()}, "a plan needs a topology"),
    ],
)
def test_unknown_choices_are_named(options, message):
    with pytest.raises(UsageError, match=message):
        planned(two_sites(), **options)
