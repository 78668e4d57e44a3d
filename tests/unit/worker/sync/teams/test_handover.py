# SPDX-License-Identifier: Apache-2.0
"""The leader's mean becomes its team's, beside the training."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gangline.collectives.transports import open_door
from gangline.spec.exchange.structure import Structure
from gangline.spec.view import View
from gangline.spec.wire import WireSettings
from gangline.worker.sync.teams.handover import HandOver
from gangline.worker.sync.teams.replica import Copy
from wire_members import in_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MEAN = Copy(torch.arange(5.0), (3.0,))
VIEW = View(number=0, members=(4, 7), shares=(1, 1))
TREE = Structure(topology="ring", leader=4, groups=(Structure.flat((4,)), Structure.flat((7,))))


class Member:
    """One of two members, each with a door of its own."""

    def __init__(self, rank: int, doors: list[Any], timeout_s: float) -> None:
        self.rank = rank
        self.door = doors[rank]
        self.num_connected = 0
        self.failures: list[str] = []
        self.view = VIEW
        connect = self.door.connect_beside

        def connect_beside(*args: Any, **options: Any) -> Any:
            self.num_connected += 1
            return connect(*args, **options)

        self.door.connect_beside = connect_beside
        self.session = SimpleNamespace(
            door=self.door,
            group=SimpleNamespace(size=2),
            place=SimpleNamespace(worker=VIEW.members[rank], run="run"),
            client=SimpleNamespace(addresses=lambda number: [one.address for one in doors]),
        )
        self.handing = HandOver(self.session, lambda: self.view)  # type: ignore[arg-type]

    def hand_over(self, number: int, *, is_committed: bool = True) -> Copy | None:
        self.handing.begin(number, MEAN if self.rank == 0 else None, self.failures.append)
        assert self.handing.is_begun
        self.handing.wait(lambda: False)
        found = self.handing.result
        self.handing.end(is_committed=is_committed)
        return found


@contextlib.contextmanager
def members(timeout_s: float = 10.0) -> Iterator[list[Member]]:
    settings = WireSettings()
    doors = [
        open_door("wire", host="127.0.0.1", token="t" * 32, timeout_s=timeout_s, settings=settings)
        for _ in range(2)
    ]
    made = [Member(rank, doors, timeout_s) for rank in range(2)]
    try:
        yield made
    finally:
        for one in made:
            one.handing.close()
            one.door.close()


def each(made: list[Member], body: Callable[[Member], Any]) -> list[Any]:
    return in_threads(len(made), lambda rank: body(made[rank]))


def test_all_get_the_leaders_mean_in_one_group_after_the_other() -> None:
    with members() as made:
        for number in (5, 6):
            for found in each(made, lambda one, number=number: one.hand_over(number)):
                assert torch.equal(found.values, MEAN.values)
                assert found.counters == MEAN.counters
        assert [one.num_connected for one in made] == [1, 1], "the group is kept"
        for one in made:
            one.session.group = SimpleNamespace(size=2)
            assert not one.handing.is_begun
        each(made, lambda one: one.hand_over(7))
        assert [one.num_connected for one in made] == [2, 2], "the members are in another group"


def test_after_a_round_that_came_to_nothing_all_wait_once() -> None:
    with members() as made:
        each(made, lambda one: one.hand_over(5, is_committed=False))
        assert not any(one.handing.is_possible for one in made)
        for one in made:
            one.handing.end(is_committed=True)
        assert all(one.handing.is_possible for one in made)
        each(made, lambda one: one.hand_over(6))
        assert [one.num_connected for one in made] == [2, 2]


def test_in_a_tree_of_groups_and_alone_it_is_not_done_beside_the_training() -> None:
    with members() as (one, other):
        assert one.handing.is_possible
        one.view = View(number=0, members=(4, 7), shares=(1, 1), structure=TREE)
        assert not one.handing.is_possible
        other.session.group = SimpleNamespace(size=1)
        assert not other.handing.is_possible


@pytest.mark.parametrize("has_moved", [False, True])
def test_the_round_fails_where_a_member_does_not_come(has_moved: bool) -> None:
    with members(timeout_s=0.3) as (leader, _):
        leader.handing.begin(5, MEAN, leader.failures.append)
        if has_moved:
            leader.session.group = SimpleNamespace(size=2)
        leader.handing.wait(lambda: False)
        assert leader.handing.result is None
        assert bool(leader.failures) != has_moved, "who is in another group begins again there"
