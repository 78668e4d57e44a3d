# SPDX-License-Identifier: Apache-2.0
"""What parameter servers cost: how many are best, and who can serve how much."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace
from planning_cases import LAN, LENET, WAN, node, planned, table_1, two_sites

from gangline.planning.cost.serving import compare_served, serving_rates
from gangline.planning.synthetic import Shape, synthesize
from gangline.spec.profile import ClusterProfile, Zone

EVEN = ClusterProfile(
    nodes=tuple(node(f"n{i}") for i in range(8)), zones=(Zone(place="", link=LAN),)
)


def test_a_server_is_the_bottleneck_and_more_servers_share_it() -> None:
    compared = compare_served(EVEN, LENET, planned(EVEN), replicas=0)
    by_count = {row.servers: row for row in compared.rows}
    assert list(by_count) == [1, 2, 4, 8]
    message_s = LENET.gradient_bytes / LAN.bytes_per_s
    assert by_count[1].together_s == pytest.approx(2 * (LAN.latency_s + 7 * message_s))
    assert by_count[8].together_s == pytest.approx(2 * (LAN.latency_s + 7 / 8 * message_s))
    assert compared.best.servers == 8


def test_copies_cost_something() -> None:
    plan = planned(EVEN)
    with_copies, without = (
        compare_served(EVEN, LENET, plan, replicas=count).best for count in (1, 0)
    )
    assert with_copies.asp_step_s > without.asp_step_s
    assert with_copies.bsp_step_s > without.bsp_step_s


def test_the_backward_pass_hides_what_is_pushed_but_for_the_last_unit() -> None:
    plan = planned(EVEN)
    in_one, in_four, late = (
        compare_served(EVEN, replace(LENET, **more), plan, replicas=0).rows[0]
        for more in (
            {"unit_bytes": 250e3},
            {"unit_bytes": 62.5e3},
            {"unit_bytes": 62.5e3, "overlap": 0.0},
        )
    )
    push_s = 7 * LENET.gradient_bytes / LAN.bytes_per_s
    assert LENET.overlap * plan.prediction.compute_s > push_s
    assert in_one.bsp_step_s - in_four.bsp_step_s == pytest.approx(0.75 * push_s)
    assert in_one.asp_step_s - in_four.asp_step_s == pytest.approx(0.75 * push_s / 7)
    assert late.bsp_step_s == in_one.bsp_step_s


@pytest.mark.parametrize("profile", [EVEN, two_sites(), table_1()])
def test_no_mode_of_parameter_servers_is_faster_than_computing_apart(
    profile: ClusterProfile,
) -> None:
    compared = compare_served(profile, LENET, planned(profile))
    assert all(row.asp_step_s >= compared.apart_s for row in compared.rows)
    assert all(row.bsp_step_s >= row.asp_step_s for row in compared.rows)


def test_a_node_alone_pushes_nowhere() -> None:
    alone = ClusterProfile(nodes=(node("a"),))
    compared = compare_served(alone, LENET, planned(alone))
    assert [row.together_s for row in compared.rows] == [0.0]
    assert compared.best.asp_step_s == compared.apart_s


def test_who_is_behind_a_slow_link_or_adds_up_slowly_can_serve_less() -> None:
    nodes = (node("a", access=WAN), node("b"), node("c"), node("d", reduce_s_per_byte=1e-6))
    rates = serving_rates(ClusterProfile(nodes=nodes, zones=(Zone(place="", link=LAN),)))
    assert rates[0] < 0.1 * rates[1]
    assert rates[1] == rates[2]
    assert rates[3] < 0.1 * rates[1]
    assert serving_rates(ClusterProfile(nodes=(node("a"), node("b")))) == (math.inf, math.inf)


def test_a_large_cluster_is_compared_quickly() -> None:
    profile = synthesize(
        Shape.from_text("sites=2,racks=10,nodes=100"), rng=np.random.default_rng(0)
    )
    compared = compare_served(profile, LENET, planned(profile))
    assert math.isfinite(compared.best.asp_step_s)
