# SPDX-License-Identifier: Apache-2.0
"""A coordinator of teams that is killed, and started again from its journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from federations import LENGTH, founded, lose_worker, restart, through_epoch

from gangline.coordinator.server.journal import FileJournal
from gangline.coordinator.teams.attendance import AWAY_S, RETURN_S
from gangline.protocol.messages import EpochClosed, Goodbye, RoundClosed, RoundOpened, ViewPublished
from gangline.spec.event import RoundEnded, SamplesLeased
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def test_teams_leases_and_merges_are_as_they_were_after_a_restart(journal: Path) -> None:
    room = founded(sync="percentage(0.5)", journal=FileJournal(journal))
    leases = [room.lease(worker, 0) for worker in (0, 1)]
    room.step_of(0, 1)
    room.step_of(1, 1)
    for worker in (0, 1):
        room.done(worker, 12)
    views = [room.view_of(worker) for worker in (0, 1)]
    restart(room, journal)
    assert [team.members for team in room.teams.active] == [(0,), (1,)]
    for worker in (0, 1):
        room.hello(worker)
        assert room.view_of(worker) == views[worker]
        assert room.lease(worker, 0) == leases[worker]
    assert room.teams.lending.book.num_committed == 24
    assert room.lease(0, 1)[0] == leases[1][1]


def test_a_pending_round_is_closed_for_who_comes_back_after_a_restart(journal: Path) -> None:
    room = founded(sync="percentage(0.5)", journal=FileJournal(journal))
    for worker in (0, 1):
        room.lease(worker, 0)
        room.step_of(worker, 1)
    pending = room.last(0, RoundOpened).number
    room.done(0, 12)
    restart(room, journal)
    for worker in (0, 1):
        room.hello(worker)
        closed = room.last(worker, RoundClosed)
        assert closed.number >= pending
        assert not closed.is_committed
    for number in (2, 3):
        room.step_of(0, number)
        room.step_of(1, number)
    assert room.last(0, RoundOpened).number > closed.number


def test_round_numbers_are_never_used_twice_however_often_it_is_restarted(journal: Path) -> None:
    room = founded(sync="percentage(0.5)", journal=FileJournal(journal))
    opened = []
    for number in range(1, 7, 2):
        for worker in (0, 1):
            room.lease(worker, 0)
            room.step_of(worker, number)
            room.step_of(worker, number + 1)
        opened.append(room.last(0, RoundOpened).number)
        restart(room, journal)
        for worker in (0, 1):
            room.hello(worker)
            assert room.last(worker, RoundClosed).number >= opened[-1], "it is lost"
    assert opened == sorted(set(opened))


def test_a_committed_round_is_told_again_after_a_restart(journal: Path) -> None:
    room = founded(sync="percentage(0.5)", journal=FileJournal(journal))
    for worker in (0, 1):
        room.lease(worker, 0)
        room.step_of(worker, 1)
    number = room.last(0, RoundOpened).number
    for worker in (0, 1):
        room.done(worker, 12)
    restart(room, journal)
    room.hello(1)
    told = [one for one in room.told[1] if isinstance(one, RoundClosed)]
    assert (told[0].number, told[0].is_committed) == (number, True)


def test_the_end_of_an_epoch_is_told_again_after_a_restart(journal: Path) -> None:
    room = founded(journal=FileJournal(journal))
    through_epoch(room, 0)
    closed = room.last(1, EpochClosed)
    restart(room, journal)
    room.hello(1)
    assert room.last(1, EpochClosed) == closed
    assert room.lease(0, 0, epoch=1)[0] == 0


def test_a_job_that_is_over_is_not_gone_on_with(journal: Path) -> None:
    room = founded(journal=FileJournal(journal))
    through_epoch(room, 0)
    for worker in (0, 1):
        room.say(worker, Goodbye(reason="done"))
    restart(room, journal)
    assert room.hub.status().view is None


def test_a_lost_team_stays_lost_after_a_restart(journal: Path) -> None:
    room = founded(3, journal=FileJournal(journal))
    leases = [room.lease(worker, 0) for worker in range(3)]
    lose_worker(room, 2)
    restart(room, journal)
    assert [team.number for team in room.teams.active] == [0, 1]
    assert room.teams.lending.book.num_free == LENGTH - sum(
        stop - start for start, stop in leases[:2]
    )
    assert [team.batch for team in room.teams.active] == [6, 6]


def test_what_was_written_down_last_is_in_the_events_after_a_restart(journal: Path) -> None:
    room = founded(sync="percentage(0.5)", journal=FileJournal(journal))
    leases = [room.lease(worker, 0) for worker in (0, 1)]
    room.log.events.pop()
    restart(room, journal)
    assert [(one.start, one.stop) for one in room.events(SamplesLeased)] == leases
    for worker in (0, 1):
        room.hello(worker)
        room.step_of(worker, 1)
        room.step_of(worker, 2)
    for worker in (0, 1):
        room.done(worker, 12)
    ended = room.log.events.pop()
    restart(room, journal)
    (again,) = room.events(RoundEnded)
    assert (again.number, again.offsets) == (ended.number, ended.offsets)
    assert again.is_committed


def test_a_mode_that_was_set_still_holds_after_a_restart(journal: Path) -> None:
    room = founded(journal=FileJournal(journal))
    room.hub.set_sync(parse_sync("local(7)"))
    restart(room, journal)
    assert room.teams.sync == parse_sync("local(7)")


def test_teams_have_time_to_come_back_after_a_restart(journal: Path) -> None:
    room = founded(journal=FileJournal(journal))
    restart(room, journal)
    room.hello(0)
    room.tick()
    room.tick(AWAY_S + 0.1)
    assert len(room.teams.active) == 2
    room.tick(RETURN_S)
    assert [team.number for team in room.teams.active] == [0]


def test_who_meets_others_is_waited_for_after_a_restart(journal: Path) -> None:
    room = founded(journal=FileJournal(journal))
    used = {worker: room.lease(worker, 0)[1] for worker in (0, 1)}
    room.reach(0, used[0])
    restart(room, journal)
    for worker in (0, 1):
        room.hello(worker)
        room.reach(worker, used[worker])
    assert room.last(1, RoundOpened).is_whole
    assert room.has(0, ViewPublished)


def test_who_was_told_that_nothing_is_left_hears_the_same_after_a_restart(journal: Path) -> None:
    room = founded(3, journal=FileJournal(journal))
    room.lease(0, 0)
    book = room.teams.lending.book
    while not (
        book.has_ended(0) and book.has_ended(2)
    ):  # the rest is for worker 1, who has not asked
        for worker in (0, 2):
            room.lease(worker, len(book.order_of(worker)))
    start, stop = room.lease(0, len(book.order_of(0)))
    assert start == stop
    lose_worker(room, 2)
    assert book.num_free > 0
    restart(room, journal)
    for worker in (0, 1):
        room.hello(worker)
    book = room.teams.lending.book
    assert book.num_free > 0
    start, stop = room.lease(0, len(book.order_of(0)))
    assert start == stop, "another of its members may have heard so before"
    start, stop = room.lease(1, 0)
    assert start < stop, "who was told nothing of the kind gets some"
