# SPDX-License-Identifier: Apache-2.0
"""Which workers hold the shards, by what they can serve."""

from __future__ import annotations

import math

import pytest

from gangline.control.sync.placing import Candidate, capacities, move_shards, place_shards
from gangline.spec.serving import Service, parse_service


def workers(*capacity: float, machines: str = "") -> list[Candidate]:
    names = machines or "abcdefgh"
    return [Candidate(worker=i, machine=names[i], capacity=one) for i, one in enumerate(capacity)]


def asked(text: str) -> Service:
    return parse_service(text)


def test_who_is_behind_a_slow_link_holds_no_shard_and_no_copy_if_others_can() -> None:
    places = place_shards(asked("asp(servers=2)"), workers(0.01, 1.0, 1.0, 1.0))
    held = {one.primary for one in places} | {one.replica for one in places}
    assert held == {1, 2, 3}


def test_a_slow_worker_serves_where_nobody_else_is_left() -> None:
    places = place_shards(asked("asp(servers=2)"), workers(0.01, 1.0))
    assert [one.primary for one in places] == [1, 0]
    assert [one.replica for one in places] == [0, 1]


def test_shards_are_in_proportion_to_what_their_servers_can_serve() -> None:
    places = place_shards(asked("asp(servers=3)"), workers(2e8, 1e8, 4e8))
    assert {one.primary: one.weight for one in places} == pytest.approx({2: 1, 0: 0.5, 1: 0.25})


def test_those_of_whom_nothing_is_known_are_alike() -> None:
    places = place_shards(asked("asp(servers=3)"), workers(1.0, 1.0, 1.0, 1.0))
    assert [(one.primary, one.weight) for one in places] == [(0, 1.0), (1, 1.0), (2, 1.0)]
    assert capacities([0, 1, 2], ()) == {0: 1.0, 1: 1.0, 2: 1.0}
    assert capacities([0, 1, 7], (4.0, 2.0)) == {0: 4.0, 1: 2.0, 7: 3.0}
    assert capacities([0, 1], (math.inf, 2.0)) == {0: 2.0, 1: 2.0}


def test_two_servers_on_one_machine_share_its_link() -> None:
    spread = place_shards(asked("asp(servers=2)"), workers(1.0, 1.0, 0.8, machines="aab"))
    assert [one.primary for one in spread] == [0, 2]
    beside = place_shards(asked("asp(servers=2)"), workers(1.0, 1.0, 0.1, machines="aab"))
    assert [(one.primary, one.weight) for one in beside] == [(0, 1.0), (1, 1.0)]


def test_a_copy_goes_to_who_serves_least_for_what_it_can() -> None:
    before = place_shards(asked("asp(servers=2)"), workers(1.0, 1.0, 0.9, 0.2))
    assert [(one.primary, one.replica) for one in before] == [(0, 2), (1, 0)]
    left = workers(1.0, 1.0, 0.9, 0.2)[1:]
    copied = {(0, 2), (1, 0)}
    moved = move_shards(before, left, replicas=1, copied=copied)
    assert [(one.primary, one.replica) for one in moved] == [(2, 1), (1, 2)]
