# SPDX-License-Identifier: Apache-2.0
"""A worker's side of its team: which samples are its, what it waits for, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.protocol.messages import (
    MAX_SUMMED,
    MAX_TOLD_BYTES,
    EpochClosed,
    Heard,
    LeaseAsked,
    LeaseGranted,
    Reached,
    RoundClosed,
    RoundOpened,
)
from gangline.spec.errors import UsageError
from gangline.spec.leases import Lease
from gangline.spec.position import Position
from gangline.spec.sync import Sync, parse_sync
from gangline.spec.view import View
from gangline.worker.gradients.agreement import WIDTH, Agreed, Statement, ViewSection
from gangline.worker.groups.views import ViewSchedule
from gangline.worker.line.teampost import TeamPost
from gangline.worker.sync.teams import teamwork
from gangline.worker.sync.teams.teamwork import Teamwork

VIEW = View(number=0, members=(0,), shares=(1,))


class Line:
    """A line to a coordinator that answers as the test says."""

    def __init__(self) -> None:
        self.post = TeamPost()
        self.sent: list[Any] = []
        self.withdrawn: list[type[Any]] = []
        self.leases: list[Lease] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)
        if isinstance(message, LeaseAsked) and message.number < len(self.leases):
            start, stop = self.leases[message.number]
            self.post.put(
                LeaseGranted(epoch=message.epoch, number=message.number, start=start, stop=stop)
            )

    def withdraw(self, kind: type[Any]) -> None:
        self.withdrawn.append(kind)

    def wait_post(self, find: Any, what: str) -> Any:
        found = find()
        assert found is not None, f"would wait for {what}"
        return found


class Rounds:
    """The rounds of a worker that takes part in all that it hears of."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self.last = -1
        self.num_steps = 3
        self.begun: list[tuple[int, tuple[int, int]]] = []

    def begin(self, number: int, mark: tuple[int, int], sync: Sync) -> None:
        self.last = number
        if sync.overlaps:
            self.num_steps = 0
        self.begun.append((number, mark))

    def complete(self, sync: Sync) -> Sync:
        newest = self._line.post.opening(self.last)
        if newest is not None and newest.is_whole:
            self.num_steps = 0
        return sync

    def advance(
        self, least: Any, most: Any, *, mark: tuple[int, int], sync: Sync, step_s: float
    ) -> Sync:
        self.num_steps += 1
        return sync

    def drop(self) -> None:
        pass

    def load(self, state: Any) -> None:
        pass


class Session:
    def __init__(self, line: Line) -> None:
        self.client = line


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def team(line: Line, monkeypatch: pytest.MonkeyPatch) -> Any:
    rounds = Rounds(line)
    monkeypatch.setattr(teamwork, "Merging", lambda session, prepared, view: rounds)
    return Teamwork(Session(line), None, parse_sync("local(2, strict)"), view=lambda: VIEW)  # type: ignore[arg-type]


def at(epoch: int, start: int, step: int = 0) -> Position:
    return Position.at_start()._replace(epoch=epoch, start=start, step=step)


def opened(number: int, *, is_whole: bool) -> RoundOpened:
    return RoundOpened(number=number, group=0, leaders=(0,), addresses=(), is_whole=is_whole)


def closed(number: int) -> RoundClosed:
    return RoundClosed(number=number, is_committed=True, sync=parse_sync("local(2, strict)"))


def end_of(epoch: int, number: int, *, is_complete: bool = True) -> EpochClosed:
    return EpochClosed(epoch=epoch, step=7, round=number, is_complete=is_complete, teams=(0,))


def test_the_leases_are_the_teams_order(team: Any, line: Line) -> None:
    line.leases = [Lease(10, 18), Lease(30, 34), Lease(0, 0)]
    assert team.reach(0, 6, length=50) == 6
    assert team.reach(0, 10, length=50) == 10
    assert team.locate(6, 10) == [(16, 18), (30, 32)]
    assert team.reach(0, 16, length=50) == 12
    assert team.locate(10, 12) == [(32, 34)]


def test_the_next_lease_is_asked_for_before_it_is_needed(team: Any, line: Line) -> None:
    line.leases = [Lease(0, 8), Lease(8, 16)]
    team.reach(0, 4, length=50)
    assert [one.number for one in line.sent] == [0, 1]


def test_a_team_of_another_epoch_begins_its_order_anew(team: Any, line: Line) -> None:
    line.leases = [Lease(0, 8), Lease(0, 0)]
    assert team.reach(0, 8, length=8) == 8
    line.post.put(opened(0, is_whole=True))
    line.post.put(closed(0))
    line.post.put(end_of(0, 0))
    assert team.meet(at(0, 8), is_end=True).is_complete
    line.leases = [Lease(4, 6), Lease(0, 0)]
    assert team.reach(1, 8, length=8) == 2


def test_leaving_an_epoch_before_its_end_is_refused(team: Any, line: Line) -> None:
    line.leases = [Lease(0, 8)]
    team.reach(0, 4, length=8)
    with pytest.raises(UsageError) as caught:
        team.reach(1, 4, length=8)
    assert "the loop asked for epoch 1 before the end of epoch 0" in str(caught.value)
    assert "instead of leaving it by `break`, or train with sync='full'" in str(caught.value)


def test_an_epoch_goes_on_where_a_lost_teams_samples_are_to_be_had(team: Any, line: Line) -> None:
    line.leases = [Lease(0, 8), Lease(0, 0)]
    assert team.reach(0, 16, length=16) == 8
    line.post.put(opened(0, is_whole=True))
    line.post.put(closed(0))
    line.post.put(end_of(0, 0, is_complete=False))
    assert not team.meet(at(0, 8), is_end=True).is_complete
    line.leases = [Lease(0, 8), Lease(8, 16), Lease(0, 0)]
    assert team.reach(0, 16, length=16) == 16


def test_the_end_of_an_epoch_comes_before_a_round_of_the_next(team: Any, line: Line) -> None:
    line.post.put(opened(3, is_whole=True))
    line.post.put(closed(3))
    line.post.put(end_of(0, 3))
    line.post.put(opened(4, is_whole=False))
    assert team.meet(at(0, 8), is_end=True) == end_of(0, 3)
    assert team.merging.begun == [(3, (0, 8))]


def test_a_team_that_stopped_goes_on_after_a_round_that_all_waited_for(
    team: Any, line: Line
) -> None:
    line.post.put(opened(2, is_whole=False))
    line.post.put(closed(2))
    line.post.put(opened(3, is_whole=True))
    line.post.put(closed(3))
    assert team.meet(at(0, 8, step=4), is_end=False) is None
    assert [number for number, _ in team.merging.begun] == [2, 3]
    (said,) = line.sent
    assert said == Reached(epoch=0, offset=8, step=4, is_end=False, after=-1)
    assert line.withdrawn == [Reached], "it waits no longer"


def test_a_team_stops_after_so_many_steps(team: Any, line: Line) -> None:
    line.post.put(opened(0, is_whole=True))
    line.post.put(closed(0))
    team.merging.num_steps = 0
    for step in (1, 2, 3):
        team.after_step(None, None, at(0, 4 * step, step=step), step_s=0.1)
    assert [one.step for one in line.sent] == [2]


def test_a_team_that_goes_on_beside_its_merge_waits_only_until_it_is_opened(
    team: Any, line: Line
) -> None:
    team.sync = parse_sync("local(2)")
    line.post.put(opened(5, is_whole=False))
    team.after_step(None, None, at(0, 8, step=4), step_s=0.1)
    assert team.merging.begun == [(5, (0, 8))]
    assert team.merging.num_steps == 0
    assert line.withdrawn == [Reached]


def test_who_is_given_to_another_team_forgets_the_samples_of_its_own(team: Any, line: Line) -> None:
    line.leases = [Lease(0, 8)]
    team.reach(0, 4, length=8)
    team.move()
    line.post.forget_leases()
    line.leases = [Lease(20, 24), Lease(0, 0)]
    assert team.reach(0, 8, length=30) == 4
    assert team.locate(0, 4) == [(20, 24)]


def test_sums_go_through_the_coordinator_and_are_small(team: Any, line: Line) -> None:
    line.post.put(Heard(epoch=1, call=0, values=(5.0,)))
    told = {"epoch": 1, "call": 0, "name": "gangline.mean()", "payload": b""}
    assert team.add_up([2.0], **told).values == (5.0,)
    with pytest.raises(UsageError, match=r"gangline\.mean\(\) was given 32769 values"):
        team.add_up([0.0] * (MAX_SUMMED + 1), **told)
    with pytest.raises(UsageError, match=r"gangline\.mean\(\) was given 65537 bytes"):
        team.add_up([], **{**told, "payload": bytes(MAX_TOLD_BYTES + 1)})


class Publisher:
    """A line on which views have come."""

    def __init__(self, *views: View, has_moved: bool) -> None:
        self._views = {view.number: view for view in views}
        self.newest_view = max(self._views)
        self.has_moved = has_moved

    def view(self, number: int) -> View:
        return self._views[number]


@pytest.mark.parametrize("has_moved", [False, True])
def test_a_view_of_another_team_is_not_agreed_on(has_moved: bool) -> None:
    first, later = (View(number=number, members=(0,), shares=(4,)) for number in (0, 3))
    schedule = ViewSchedule(first, Publisher(later, has_moved=has_moved))  # type: ignore[arg-type]
    assert schedule.held == (0 if has_moved else 3)
    heard = Statement.of([0] * WIDTH)._replace(views=ViewSection(newest=3, last_cut=5))
    adopted = schedule.agree(Agreed(heard, heard, units=(), sizes=()))
    assert (adopted is None) == has_moved
    assert schedule.newest is (first if has_moved else later)
