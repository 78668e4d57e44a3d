# SPDX-License-Identifier: Apache-2.0
"""What a worker brings into another team, when nobody there is left whom it could copy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checkpoint_jobs import INTRODUCTION
from torch import nn

from gangline.collectives import SoloGroup
from gangline.spec.errors import LeftBehindError
from gangline.spec.position import BETWEEN, ORDER, VOID, Position
from gangline.spec.sync import parse_sync
from gangline.spec.view import View, Whole
from gangline.worker.groups import membership as module
from gangline.worker.groups.membership import Membership
from gangline.worker.groups.refounding import Refounding
from gangline.worker.groups.snapshot import Snapshot
from gangline.worker.prepare.prepared import Prepared

MERGED = Position.at_start()._replace(epoch=2, step=40)
WHOLE = Whole(team=3, first_rank=0, workers=2, first_sample=0, samples=8)
ALONE = View(number=5, group=1, members=(1,), shares=(4,), whole=WHOLE)


class Communicator:
    def make(self, make: Any) -> None:
        self.group = make()

    def call(self, exchange: Any) -> Any:
        return exchange(self.group)


class Line:
    has_moved = True
    entered = team = newest_recovery = -1

    def withdraw(self, kind: type) -> None:
        pass

    def addresses(self, view: int) -> tuple[()]:
        return ()


class Door:
    def forget_groups(self) -> None:
        pass


class Place:
    run = "r"
    worker = 1


class Session:
    is_late = False

    def __init__(self) -> None:
        self.client, self.door, self.place = Line(), Door(), Place()
        self.communicator = Communicator()
        self.recorded: list[Any] = []

    def record(self, event: Any) -> None:
        self.recorded.append(event)


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Membership:
    """A worker of a team that is no more, with the state that it had there."""
    monkeypatch.setattr(module, "make_group", lambda *args, **options: SoloGroup())
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prepared = Prepared(
        models=[model],
        optimizers=[optimizer],
        stateful=(),
        sync=parse_sync("none"),
        evicts_wrong=False,
    )
    session: Any = Session()
    return Membership(
        session,
        INTRODUCTION,
        Snapshot(prepared),
        group=0,
        team=1,
        probation=None,  # type: ignore[arg-type]
        refounding=Refounding(None, prepared, INTRODUCTION),
    )


def test_who_was_given_another_team_does_not_begin_anew_with_an_old_state(
    member: Membership,
) -> None:
    member.move(keeps_state=False)
    with pytest.raises(LeftBehindError, match="other teams have gone on"):
        member.enter(ALONE, Position.at_start())


def test_who_moves_when_all_teams_were_merged_has_their_state(member: Membership) -> None:
    member.move(keeps_state=True)
    truth = member.enter(ALONE, MERGED)
    assert truth is not None
    assert (truth.position, truth.was_behind) == (MERGED, False)


def test_small_results_between_epochs_are_kept_for_those_that_come_back_much_later(
    member: Membership,
) -> None:
    small, large = ("gangline.mean()", torch.ones(2)), ("gangline.gather()", [b"0" * 4096])
    member.results = {
        (BETWEEN, 1, 0): small,
        (BETWEEN, 1, 1): large,
        (BETWEEN, 8, 0): large,
        (ORDER, 1): torch.zeros(3),
        (VOID, 40, 0): small,
        (3, 0): small,
        (40, 0): small,
    }
    member.forget_behind(Position.at_start()._replace(epoch=9, handed_out=40))
    assert set(member.results) == {(BETWEEN, 8, 0), (40, 0)}
    assert member.knows((BETWEEN, 1, 0))
    assert member.call((BETWEEN, 1, 0), lambda group: "its own") is small
    assert not member.knows((BETWEEN, 1, 1))


def test_results_of_a_thousand_calls_are_kept_for_long(member: Membership) -> None:
    member.results = {(BETWEEN, epoch, 0): ("gangline.any()", 1.0) for epoch in range(1500)}
    member.forget_behind(Position.at_start()._replace(epoch=1501))
    assert [member.knows((BETWEEN, epoch, 0)) for epoch in (0, 499, 500, 1499)] == [
        False,
        False,
        True,
        True,
    ]


def test_who_copies_the_state_forgets_what_it_was_told_before(member: Membership) -> None:
    member.results = {(BETWEEN, 1, 0): ("gangline.any()", 1.0)}
    member.forget_behind(Position.at_start()._replace(epoch=9))
    member.move(keeps_state=True)
    member.enter(ALONE, MERGED)
    assert member.results == {(BETWEEN, 1, 0): ("gangline.any()", 1.0)}, "it was told so itself"
