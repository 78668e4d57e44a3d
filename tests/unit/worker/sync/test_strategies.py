# SPDX-License-Identifier: Apache-2.0
"""The strategies by which workers are held together, and how one follows another."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.protocol.messages import EpochClosed
from gangline.spec.errors import ExchangeAborted, UsageError
from gangline.spec.position import Position
from gangline.spec.sync import Sync, parse_sync
from gangline.spec.view import View, Whole
from gangline.worker.gradients.agreement import RoundSection
from gangline.worker.groups.views import ViewSchedule
from gangline.worker.samples.order import Company
from gangline.worker.sync.in_step import InStep
from gangline.worker.sync.mode import Mode
from gangline.worker.sync.strategy import EpochEnd, GroupLost, KeptAt
from gangline.worker.sync.teams import member
from gangline.worker.sync.teams.member import TeamMember

POSITION = Position.at_start()._replace(epoch=1, start=8, step=2)


class Prepared:
    sync = parse_sync("local(2)")


class Client:
    has_moved = False
    num_waits = 0

    def wait_moved(self) -> None:
        self.num_waits += 1


class Session:
    def __init__(self) -> None:
        self.client = Client()


class Members:
    """A membership that notes what it is told."""

    def __init__(self) -> None:
        self.is_broken = False
        self.errors: list[Exception] = []
        self.moves: list[bool] = []
        """Whether it kept its state, of each time that it moved."""

    def fail(self, error: Exception, position: Position) -> None:
        assert position == POSITION
        self.errors.append(error)
        self.is_broken = True

    def move(self, *, keeps_state: bool) -> None:
        self.moves.append(keeps_state)


class Snapshot:
    companion: Any = None


class Team:
    """A team's work, which answers as the test says, or fails."""

    def __init__(self, *args: Any, view: Any, is_parting: bool) -> None:
        self.sync: Sync = args[2]
        self.is_parting = is_parting
        self.length = 0
        self.error: Exception | None = None
        self.closed = EpochClosed(epoch=1, step=7, round=0, is_complete=True, teams=(0,))
        self.renewed: list[tuple[Sync, int]] = []
        self.num_moves = 0

    def _answer(self, answer: Any) -> Any:
        if self.error is not None:
            raise self.error
        return answer

    def reach(self, epoch: int, stop: int, *, length: int) -> Any:
        return self._answer(stop - 1)

    def meet(self, position: Position, *, is_end: bool) -> Any:
        return self._answer(self.closed)

    def add_up(self, values: Any, **call: Any) -> Any:
        return self._answer((values, call))

    def after_step(self, least: Any, most: Any, position: Position, *, step_s: float) -> None:
        self._answer(None)

    def renew(self, sync: Sync, *, epoch: int) -> None:
        self.renewed.append((sync, epoch))

    def move(self) -> None:
        self.num_moves += 1


@pytest.fixture(autouse=True)
def _no_merging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "Teamwork", Team)


def view(*, is_part: bool = False) -> View:
    whole = Whole(team=0, first_rank=0, workers=2, first_sample=0, samples=8) if is_part else None
    return View(number=0, members=(0,), shares=(4,), whole=whole)


def begin(first: View) -> tuple[Mode, Members, Session, Snapshot]:
    session, members, snapshot = Session(), Members(), Snapshot()
    mode = Mode(
        session,  # type: ignore[arg-type]
        Prepared(),  # type: ignore[arg-type]
        ViewSchedule(first, None),
        members,  # type: ignore[arg-type]
        snapshot,  # type: ignore[arg-type]
        company=Company.TOGETHER,
    )
    return mode, members, session, snapshot


def in_team() -> tuple[TeamMember, Team, Members]:
    mode, members, _, _ = begin(view(is_part=True))
    assert isinstance(mode.strategy, TeamMember)
    team: Any = mode.strategy._team
    return mode.strategy, team, members


def test_in_step_there_is_nobody_else() -> None:
    mode, *_ = begin(view())
    strategy = mode.strategy
    assert isinstance(strategy, InStep)
    assert (strategy.number, strategy.is_first, strategy.company) == (0, True, Company.TOGETHER)
    assert strategy.kept_at is KeptAt.STEP
    assert strategy.section == RoundSection(-1, -1, -1, -1)
    assert strategy.reach(POSITION, 8, 16, length=12) == 12
    assert strategy.locate(3, 5) == [(3, 5)]
    assert strategy.end_epoch(POSITION) is None
    assert strategy.add_up([1.0], POSITION, call=(1, 0), name="mean", payload=b"") is None
    assert strategy.find_loss(POSITION) is None


def test_workers_in_step_stay_so_until_a_view_parts_them() -> None:
    mode, _, _, snapshot = begin(view())
    mode.follow(view())
    assert isinstance(mode.strategy, InStep)
    mode.follow(view(is_part=True))
    strategy: Any = mode.strategy
    assert isinstance(strategy, TeamMember)
    assert strategy._team.is_parting
    assert snapshot.companion is strategy, "newcomers copy its state"
    mode.follow(view(is_part=True))
    assert mode.strategy is strategy


def test_who_missed_the_parting_comes_over_into_a_team_that_has_parted() -> None:
    mode, members, session, _ = begin(view())
    assert not mode.come_over()
    session.client.has_moved = True
    assert mode.come_over()
    strategy: Any = mode.strategy
    assert not strategy._team.is_parting
    assert mode.come_over()
    assert mode.strategy is strategy
    assert (strategy._team.num_moves, members.moves) == (1, [False, False])


def test_who_is_to_part_goes_no_further_in_the_epoch() -> None:
    mode, *_ = begin(view())
    mode.follow(view(is_part=True))
    strategy: Any = mode.strategy
    assert strategy.reach(POSITION, 8, 16, length=50) == 8
    assert strategy._team.length == 50


def test_what_fails_while_a_team_waits_breaks_its_group() -> None:
    strategy, team, members = in_team()
    assert strategy.reach(POSITION, 8, 16, length=50) == 15
    team.error = ExchangeAborted("broken off")
    waits = (
        lambda: strategy.reach(POSITION, 8, 16, length=50),
        lambda: strategy.end_epoch(POSITION),
        lambda: strategy.add_up([1.0], POSITION, call=(1, 0), name="mean", payload=b""),
    )
    for wait in waits:
        members.is_broken = False
        with pytest.raises(GroupLost):
            wait()
    assert members.errors == [team.error] * 3


def test_a_broken_group_meets_nobody() -> None:
    strategy, _, members = in_team()
    members.is_broken = True
    with pytest.raises(GroupLost):
        strategy.end_epoch(POSITION)
    assert members.errors == [], "it is known already"


def test_teams_end_an_epoch_together_and_may_part_in_another_way() -> None:
    strategy, team, members = in_team()
    assert strategy.end_epoch(POSITION) == EpochEnd(step=7, is_complete=True, has_moved=False)
    sync = parse_sync("local(4)")
    team.closed = EpochClosed(epoch=1, step=9, round=1, is_complete=True, teams=(0,), regroup=sync)
    assert strategy.end_epoch(POSITION) == EpochEnd(step=9, is_complete=True, has_moved=True)
    assert team.renewed == [(sync, 1)]
    assert members.moves == [True], "all teams are alike: nobody needs to copy"


def test_a_team_says_what_a_script_may_not_do() -> None:
    strategy, team, _ = in_team()
    assert team.sync == Prepared.sync
    assert strategy.kept_at is KeptAt.EPOCH
    assert not strategy.waits_at_end
    with pytest.raises(UsageError, match="before it has computed the last batch of this one"):
        strategy.check_ahead()
    loss = strategy.find_loss(POSITION)
    assert "they are merged at its end, and these parameters are those of one group" in str(loss)
