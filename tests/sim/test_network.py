# SPDX-License-Identifier: Apache-2.0
"""What simulated exchanges take: the cost model's formula, and what it cannot say."""

from __future__ import annotations

import numpy as np
import pytest

from gangline.planning.cost.model import LinkCost, all_reduce_s
from gangline.simulation import Scenario
from gangline.simulation.links import SimulatedLink, Spell
from gangline.simulation.network import Network
from gangline.simulation.scenario import SimulatedNode
from gangline.spec.errors import UsageError


def network(*links, count=4, **fields):
    nodes = tuple(SimulatedNode(name=f"n{i}", place=f"p{i}", **fields) for i in range(count))
    return Network(Scenario(nodes=nodes, links=links), np.random.default_rng(0))


def ring_s(found, *, num_bytes=1e6, begin_s=0.0):
    return max(found.ring_s(range(4), [begin_s] * 4, num_bytes=num_bytes)) - begin_s


def test_a_ring_takes_what_the_cost_model_says():
    found = network(bytes_per_s=1e7, delay_s=0.005)
    link = LinkCost(latency_s=0.01, s_per_byte=1e-7)
    expected = all_reduce_s("ring", 4, num_bytes=1e6, link=link)
    assert ring_s(found) == pytest.approx(expected)
    assert found.crossed_bytes == pytest.approx(4 * 2 * 0.75 * 1e6)


def test_one_bad_link_is_not_paid_for_by_all():
    bad = SimulatedLink(between=("n0", "n1"), bytes_per_s=1e6)
    found = network(bad, bytes_per_s=1e8)
    # Every part has to cross it, one after the other.
    assert 2 * 0.75 <= ring_s(found) < 1.2 * 2 * 0.75


def test_a_spell_makes_bytes_slower_while_it_lasts():
    spell = Spell(from_s=10, to_s=20, factor=10)
    link = SimulatedLink(between=("p0", "p1"), delay_s=0.01, bytes_per_s=400, spells=(spell,))
    nodes = tuple(SimulatedNode(name=f"n{i}", place=f"p{i}") for i in range(2))
    found = Network(Scenario(nodes=nodes, links=(link,)), np.random.default_rng(0))
    times = [max(found.ring_s([0, 1], [at, at], num_bytes=8)) - at for at in (0.0, 15.0, 20.0)]
    assert times == pytest.approx([0.04, 0.22, 0.04])


def test_jitter_makes_messages_late_by_up_to_so_much():
    link = SimulatedLink(between=("p0", "p1"), delay_s=0.01, jitter_s=0.01)
    nodes = tuple(SimulatedNode(name=f"n{i}", place=f"p{i}") for i in range(2))
    found = Network(Scenario(nodes=nodes, links=(link,)), np.random.default_rng(0))
    times = [max(found.ring_s([0, 1], [0.0, 0.0], num_bytes=8)) for _ in range(50)]
    assert 0.02 <= min(times) < max(times) <= 0.04


def test_a_member_that_comes_late_is_waited_for():
    found = network()
    assert found.ring_s(range(4), [0.0, 3.0, 1.0, 0.0], num_bytes=1e6) == [3.0] * 4
    assert found.is_free


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"between": ("n0", "n9"), "delay_s": 0.1}, "ends at 'n9', which is no node"),
        ({"between": ("n0", "n0"), "delay_s": 0.1}, "one end is the other, or inside it"),
        ({"between": ("n0", "n1"), "bytes_per_s": 0.0}, "bytes_per_s must be finite and above 0"),
        ({"between": ("n0", "n1"), "jitter_s": -1.0}, "jitter_s must be finite and 0 or more"),
        (
            {"between": ("n0", "n1"), "spells": (Spell(from_s=0, to_s=1, factor=2),)},
            "has spells, in which its bytes take longer, .* give bytes_per_s",
        ),
    ],
)
def test_a_link_that_cannot_be_is_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        network(SimulatedLink(**fields))


def test_a_spell_that_ends_before_it_begins_is_refused():
    with pytest.raises(UsageError, match="from a time to a later one"):
        Spell(from_s=2.0, to_s=1.0, factor=3.0)


def test_messages_that_share_a_link_go_one_after_the_other():
    found = network(bytes_per_s=1e6)
    arrivals = [found.deliver_s(source, 0, 0.0, num_bytes=1e6) for source in (1, 2, 3)]
    assert arrivals == pytest.approx([1.0, 2.0, 3.0])
    assert found.deliver_s(0, 1, 0.0, num_bytes=1e6) == pytest.approx(1.0), "each way for itself"
    assert found.deliver_s(1, 1, 0.5, num_bytes=1e6) == 0.5


def test_who_has_a_slow_link_does_not_keep_a_server_from_others():
    nodes = tuple(
        SimulatedNode(name=name, bytes_per_s=speed)
        for name, speed in (("server", 1e6), ("slow", 1e4), ("fast", 1e6))
    )
    found = Network(Scenario(nodes=nodes), np.random.default_rng(0))
    assert found.deliver_s(1, 0, 0.0, num_bytes=1e5) == pytest.approx(10.0)
    assert found.deliver_s(2, 0, 0.0, num_bytes=1e5) == pytest.approx(0.2)


def test_a_link_between_places_is_shared_by_all_who_are_there():
    nodes = tuple(SimulatedNode(name=f"n{i}", place="here" if i else "there") for i in range(3))
    link = SimulatedLink(between=("here", "there"), bytes_per_s=1e6, delay_s=0.01)
    found = Network(Scenario(nodes=nodes, links=(link,)), np.random.default_rng(0))
    assert found.deliver_s(1, 0, 0.0, num_bytes=1e6) == pytest.approx(1.01)
    assert found.deliver_s(2, 0, 0.0, num_bytes=1e6) == pytest.approx(2.01)
    assert found.deliver_s(0, 2, 0.0, num_bytes=1e6) == pytest.approx(1.01)
