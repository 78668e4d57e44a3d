# SPDX-License-Identifier: Apache-2.0
"""The cost model, paper 000's equations, and magnitudes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.planning.cost.model import LinkCost, all_reduce_s, level_s, pipelined_s, predict_step
from gangline.planning.cost.scales import magnitude_classes
from gangline.planning.papers import paper000
from gangline.spec.errors import UsageError
from gangline.spec.plan import TOPOLOGIES

LINK = LinkCost(latency_s=1e-4, s_per_byte=1e-8, reduce_s_per_byte=1e-9)


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        ("ring", 14 * 1e-4 + 2 * 7 / 8 * 1e-2 + 7 / 8 * 1e-3),
        ("halving-doubling", 6 * 1e-4 + 2 * 7 / 8 * 1e-2 + 7 / 8 * 1e-3),
        ("tree", 6 * (1e-4 + 1e-2) + 3 * 1e-3),
        ("parameter-server", 2 * (1e-4 + 7e-2) + 7e-3),
    ],
)
def test_an_all_reduce_of_eight_costs_what_the_formulas_say(topology, expected):
    assert all_reduce_s(topology, 8, num_bytes=1e6, link=LINK) == pytest.approx(expected)


def test_halving_doubling_pays_for_a_number_that_is_no_power_of_two():
    seven, eight = (all_reduce_s("halving-doubling", p, num_bytes=1e6, link=LINK) for p in (7, 8))
    assert seven > eight


def test_a_fast_server_serves_many():
    link = LINK._replace(server_s_per_byte=1e-9)
    assert all_reduce_s("parameter-server", 8, num_bytes=1e6, link=link) == pytest.approx(
        2 * (1e-4 + 1e-2) + 7e-3
    )


def test_a_ring_with_one_bad_link_keeps_that_link_busy():
    bad = LINK._replace(s_per_byte=1e-6, mean_latency_s=1e-4, mean_s_per_byte=1e-7)
    assert all_reduce_s("ring", 8, num_bytes=1e6, link=bad) == pytest.approx(
        1e-4 + 2 * 7 / 8 * 1.0 + 7 / 8 * 1e-3
    )


def test_a_ring_with_one_distant_link_pays_its_delay_once_per_round():
    far = LINK._replace(latency_s=0.1, mean_latency_s=0.0125, mean_s_per_byte=1e-8)
    assert all_reduce_s("ring", 8, num_bytes=1e6, link=far) == pytest.approx(
        14 * 0.0125 + 2 * 7 / 8 * 1e-2 + 7 / 8 * 1e-3
    )


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_nothing_is_exchanged_alone(topology):
    assert all_reduce_s(topology, 1, num_bytes=1e6, link=LINK) == 0


def test_an_unknown_topology_is_named():
    with pytest.raises(UsageError, match="no topology 'star'; there are ring, parameter-server"):
        level_s("star", 3, num_bytes=1, link=LINK)


@given(
    topology=st.sampled_from(TOPOLOGIES),
    count=st.integers(1, 1000),
    size=st.floats(0, 1e9),
    slower=st.floats(1, 10),
)
def test_nothing_gets_cheaper_over_worse_links(topology, count, size, slower):
    worse = LinkCost(*(slower * value for value in LINK[:3]))
    before, after = (all_reduce_s(topology, count, num_bytes=size, link=k) for k in (LINK, worse))
    assert after >= before


def test_units_follow_each_other_at_the_pace_of_the_slowest_level():
    assert pipelined_s(3.0, 2.0, num_units=1) == 3.0
    assert pipelined_s(3.0, 2.0, num_units=5) == 11.0


@pytest.mark.parametrize(
    ("exchange", "units", "hidden"),
    [(1.0, 10, 0.9), (100.0, 10, 6.0), (1.0, 1, 0.0)],
)
def test_the_backward_pass_hides_all_but_the_last_unit(exchange, units, hidden):
    found = predict_step(10.0, exchange, overlap=0.6, num_units=units)
    assert found.hidden_s == pytest.approx(hidden)
    assert found.step_s == pytest.approx(10.0 + exchange - hidden)


# --- paper 000 ---------------------------------------------------------------------------------------


def test_the_equations_give_what_they_say():
    cost = {"cost": 10.0, "transfer": 2.0}
    assert paper000.serial(100, 10.0) == 1000
    assert paper000.parallel(3, [4], **cost) == 12
    assert paper000.parallel(100, [4], **cost) == 12 * 26
    assert paper000.parallel(100, [4, 3], **cost) == pytest.approx(12 * 100 / 43)
    assert paper000.parallel(100, [4, 3, 2], **cost) == pytest.approx(12 * 100 / 432)
    assert paper000.parallel(100, [4, 3, 2, 1], **cost) == pytest.approx(12 * 100 / 4321)


def test_the_operation_ratio_multiplies_the_cost():
    assert paper000.parallel(100, [4], cost=10, transfer=2, operation_ratio=1.5) == 17 * 26
    assert paper000.serial(100, 10, operation_ratio=1.5) == 1500


def test_the_equations_never_leave_out_a_group():
    assert paper000.best_number_of_groups(1000, [4, 4, 3, 3], cost=10, transfer=100) == 4


def test_the_equations_compute_serially_where_there_is_little_to_do():
    assert paper000.best_number_of_groups(1, [4, 4], cost=10, transfer=1e6) == 0


@pytest.mark.parametrize(
    ("sizes", "cost", "message"),
    [([], 1, "at least one node each"), ([0], 1, "at least one node"), ([1], 0, "above 0")],
)
def test_what_the_equations_cannot_use_is_named(sizes, cost, message):
    with pytest.raises(UsageError, match=message):
        paper000.parallel(1, sizes, cost=cost, transfer=0)


# --- magnitudes --------------------------------------------------------------------------------------


def test_numbers_are_told_apart_at_gaps():
    assert magnitude_classes([10, 0.9, 1.1, 11, 300, 9]).tolist() == [1, 0, 0, 1, 2, 1]
    assert magnitude_classes([]).tolist() == []


@given(
    classes=st.lists(st.integers(0, 4), min_size=1, max_size=40),
    seed=st.integers(0, 100),
    scale=st.floats(1e-6, 1e6),
)
def test_magnitudes_do_not_change_with_noise_or_scale(classes, seed, scale):
    noise = np.random.default_rng(seed).uniform(0.8, 1.25, len(classes))
    ranks = {value: rank for rank, value in enumerate(sorted(set(classes)))}
    found = magnitude_classes(10.0 ** np.array(classes) * noise * scale)
    assert found.tolist() == [ranks[value] for value in classes]
