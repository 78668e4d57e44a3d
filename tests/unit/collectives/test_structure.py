# SPDX-License-Identifier: Apache-2.0
"""Structures: what is valid, how they come out of plans, and how they change with their members."""

from __future__ import annotations

import functools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.collectives.hierarchy.pipeline import schedule
from gangline.collectives.hierarchy.seats import seats_of
from gangline.control import (
    ControlOptions,
    ControlState,
    WorkersJoined,
    WorkersLeft,
    WorkersLost,
    decide,
)
from gangline.spec.errors import UsageError
from gangline.spec.exchange.structure import Structure, fit
from gangline.spec.plan import GroupPlan
from gangline.spec.view import View
from tree_members import ring, server, structures


def leaves(structure: Structure) -> list[Structure]:
    return [leaf for group in structure.groups for leaf in leaves(group)] or [structure]


def test_a_structure_is_shown_in_one_line() -> None:
    tree = ring(server(ring(0, 1), ring(2), leader=2), ring(4, 3, leader=3))
    assert str(tree) == "ring(server at 2(ring(0*, 1), ring(2*)), ring(4, 3*))"
    assert str(Structure.flat([0, 1, 2])) == "ring(0*, 1, 2)"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda: Structure(topology="tree", leader=0, members=(0,)),
            "'tree' cannot be carried out",
        ),
        (lambda: Structure(topology="ring", leader=0), "either members or groups"),
        (lambda: ring(0, 1, 1), r"each worker once; more than once: \[1\]"),
        (lambda: ring(ring(0, 1), ring(1, 2)), r"more than once: \[1\]"),
        (lambda: ring(0, 1, leader=2), r"leader 2 of a group must be one of .* \[0, 1\]"),
        (lambda: ring(ring(0, 1), ring(2, 3), leader=1), r"leader 1 .* exchange in it: \[0, 2\]"),
    ],
)
def test_what_is_no_structure_is_refused(wrong: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        wrong()  # type: ignore[operator]


@given(structures())
def test_a_structure_survives_its_way_through_a_message(tree: Structure) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(tree), type=Structure) == tree
    assert msgspec.json.decode(msgspec.json.encode(tree), type=Structure) == tree


def test_a_structure_that_is_too_deep_is_refused() -> None:
    deep = functools.reduce(lambda tree, _: ring(tree), range(31), ring(0, 1))
    with pytest.raises(UsageError, match="at most 32 levels, not 33"):
        ring(deep)


def test_what_a_message_holds_is_checked_like_any_other_structure() -> None:
    payload = msgspec.json.encode({"topology": "ring", "leader": 5, "members": [0, 1]})
    with pytest.raises(msgspec.ValidationError, match="leader 5"):
        msgspec.json.decode(payload, type=Structure)


PLAN = GroupPlan(
    name="all",
    topology="parameter-server",
    leader="c",
    groups=(
        GroupPlan(name="site 0", topology="ring", leader="b", members=("a", "b")),
        GroupPlan(name="site 1", topology="solo", leader="c", members=("c",)),
    ),
)


def test_a_plan_becomes_a_structure_of_the_workers_of_its_nodes() -> None:
    tree = Structure.from_plan(PLAN, {"a": [0, 1], "b": [2], "c": [3, 4]})
    assert tree == server(ring(0, 1, 2, leader=2), ring(3, 4), leader=3)


def test_a_plan_for_other_nodes_is_refused() -> None:
    with pytest.raises(UsageError, match="it also names b, c and it leaves out d, e"):
        Structure.from_plan(PLAN, {"a": [0], "d": [1], "e": [2]})


def test_a_plan_with_a_topology_that_nobody_carries_out_is_refused() -> None:
    plan = GroupPlan(name="x", topology="halving-doubling", leader="a", members=("a", "b"))
    with pytest.raises(UsageError, match="'x' of the plan is a halving-doubling"):
        Structure.from_plan(plan, {"a": [0], "b": [1]})


def test_another_member_speaks_when_a_leader_is_lost() -> None:
    tree = ring(ring(0, 1, 2), server(3, 4), leader=3)
    assert fit(tree, [1, 2, 3, 4]) == ring(ring(1, 2), server(3, 4), leader=3)
    assert fit(tree, [0, 1, 2, 4]) == ring(ring(0, 1, 2), server(4), leader=4)


def test_levels_that_hold_nothing_together_go_when_members_are_lost() -> None:
    tree = server(ring(0, 1), ring(2, 3), leader=2)
    assert fit(tree, [0, 1]) == ring(0, 1)
    assert fit(tree, [0, 3]) == server(0, 3, leader=3)


def test_a_newcomer_goes_into_the_smallest_group() -> None:
    tree = ring(ring(0, 1), ring(2))
    assert fit(tree, [0, 1, 2, 7]) == ring(ring(0, 1), ring(2, 7))
    assert fit(tree, [8, 9]) == ring(8, 9)


@given(structures(), st.data())
def test_a_structure_fits_whoever_is_there(tree: Structure, data: st.DataObject) -> None:
    there = data.draw(st.lists(st.integers(0, 12), min_size=1, unique=True))
    fitted = fit(tree, there)
    assert sorted(fitted.workers) == sorted(there)
    assert fit(tree, there) == fitted
    for leaf in leaves(tree):
        left = [one for one in leaf.members if one in there]
        if len(left) > 1:  # they stay together, and their leader leads if it is there
            now = next(one for one in leaves(fitted) if left[0] in one.members)
            assert list(now.members[: len(left)]) == left
            assert now.topology == leaf.topology
            assert now.leader == (leaf.leader if leaf.leader in there else left[0])


@given(structures())
def test_a_structure_stays_when_nobody_comes_or_goes(tree: Structure) -> None:
    once = fit(tree, tree.workers)
    assert fit(once, once.workers) == once
    if all(len(leaf.members) > 1 for leaf in leaves(tree)):
        assert [leaf.members for leaf in leaves(once)] == [leaf.members for leaf in leaves(tree)]
        assert once.leader == tree.leader


@given(structures())
def test_everybody_has_a_seat_and_one_leader_is_heard_one_level_up(tree: Structure) -> None:
    seats = {rank: seats_of(tree, rank) for rank in tree.workers}
    for rank, own in seats.items():
        assert [seat.depth for seat in own] == sorted((seat.depth for seat in own), reverse=True)
        # Who sits one level up leads everything below that it takes part in.
        assert all(seat.is_leader for seat in own[:-1])
        for seat in own:
            assert seat.speakers[seat.place] == rank
            assert seat.via[rank] == seat.place
    if len(tree.workers) > 1:
        tops = {own[-1].speakers for own in seats.values() if own and own[-1].is_top}
        assert len(tops) == 1, "there is one place where the whole sum is made"


@given(st.integers(1, 30), st.integers(0, 5))
def test_pieces_come_back_in_order_and_never_before_they_went_up(count: int, lag: int) -> None:
    order = list(schedule(count, lag=lag))
    ups = [number for is_up, number in order if is_up]
    backs = [number for is_up, number in order if not is_up]
    assert ups == backs == list(range(count))
    for number in range(count):
        assert order.index((True, number)) < order.index((False, number))


def test_views_carry_the_structure_that_fits_their_members() -> None:
    tree = ring(ring(0, 1), server(2, 3))
    state = ControlState.begin(ControlOptions(global_batch=16, structure=tree))
    seen = []
    for event in (
        WorkersJoined(workers=(0, 1, 2, 3)),
        WorkersLost(workers=(2,), reason="killed"),
        WorkersJoined(workers=(7,)),
        WorkersLeft(workers=(0, 1)),
    ):
        state, _ = decide(state, event, 0.0)
        assert state.view is not None
        seen.append(state.view.structure and str(state.view.structure))
    assert seen == [
        "ring(ring(0*, 1), server(2*, 3))",
        "ring(ring(0*, 1), server(3*))",
        "ring(ring(0*, 1), server(3*, 7))",
        "server(3*, 7)",
    ]
    state, _ = decide(state, WorkersLost(workers=(3,), reason="killed"), 0.0)
    assert state.view is not None
    assert state.view.structure is None, "who is left was not in the tree: one ring"


def test_a_view_refuses_a_structure_of_others() -> None:
    with pytest.raises(UsageError, match=r"ring\(0\*, 2\) must hold the members \[0, 1\]"):
        View(number=0, members=(0, 1), shares=(1, 1), structure=ring(0, 2))


def test_a_leader_that_is_no_node_of_the_run_is_named() -> None:
    group = GroupPlan(name="all", topology="ring", leader="nobody", members=("a", "b"))
    with pytest.raises(UsageError, match="the leader 'nobody' of group 'all' is no node"):
        Structure.from_plan(group, {"a": [0], "b": [1]})
