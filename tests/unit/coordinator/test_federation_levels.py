# SPDX-License-Identifier: Apache-2.0
"""Teams in sites, merged often inside and rarely across: what becomes of the samples of the lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from federations import LENGTH, TeamRoom, founded, restart

from gangline.control.sync.rounds import AWAY_S
from gangline.coordinator.server.journal import FileJournal
from gangline.protocol.messages import Refused, RoundClosed, RoundOpened
from gangline.spec.event import LeaseReturned, RoundEnded
from gangline.spec.exchange.structure import RING, Structure

if TYPE_CHECKING:
    from pathlib import Path

SYNC = "percentage(0.5)/percentage(0.01)"


def rack(first: int) -> Structure:
    return Structure(topology=RING, leader=first, members=(first, first + 1))


def site(first: int) -> Structure:
    return Structure(topology=RING, leader=first, groups=(rack(first), rack(first + 2)))


SITES = Structure(topology=RING, leader=0, groups=(site(0), site(4)))
LEADERS = (0, 2, 4, 6)
"""Of teams 0 to 3; the first two are one site."""


def in_sites(**options: Any) -> TeamRoom:
    """Four teams of two workers each, two in a site; all have samples, and have made their steps."""
    room = founded(8, sync=SYNC, structure=SITES, **options)
    for worker in LEADERS:
        room.lease(worker, 0)
    for number in (1, 2):
        for worker in range(8):
            room.step_of(worker, number)
    return room


def lose_team(room: TeamRoom, team: int) -> None:
    for worker in (2 * team, 2 * team + 1):
        room.hub.disconnect(worker)
    room.tick(AWAY_S + 0.1)
    room.tick(AWAY_S + 0.1)


def test_a_site_is_merged_by_itself() -> None:
    room = in_sites()
    assert room.last(1, RoundOpened).leaders == (0, 2)
    assert room.last(7, RoundOpened).leaders == (4, 6)
    assert room.last(0, RoundOpened).level == 0
    assert room.last(0, RoundOpened).number != room.last(4, RoundOpened).number
    for worker in (0, 2):
        room.done(worker, 3)
    assert room.last(3, RoundClosed).is_committed
    assert not room.has(4, RoundClosed), "that is no business of the other site"
    assert room.teams.lending.book.num_committed == 0, "only what all teams have counts"
    (ended,) = room.events(RoundEnded)
    assert not ended.is_all
    assert ended.sync == "percentage(0.5)"


def test_all_are_merged_at_the_end_of_an_epoch() -> None:
    room = in_sites()
    for worker in LEADERS:
        room.done(worker, 3)
    for worker in range(8):
        room.reach(worker, 3)
    opened = room.last(2, RoundOpened)
    assert (opened.leaders, opened.level, opened.is_end) == (LEADERS, 1, True)


def test_the_samples_of_a_lost_team_stay_where_its_site_has_them() -> None:
    room = in_sites()
    for worker in LEADERS:
        room.done(worker, 3)
    lose_team(room, 1)
    (returned,) = room.events(LeaseReturned)
    start, stop = returned.start, returned.stop
    given = room.teams.lending.book._lost[1].order.leases[0]
    assert (start, stop) == (given.start + 3, given.stop), "what the site has is not lost"
    for worker in (0, 4, 6):
        room.reach(worker, 3)
    for worker in (0, 4, 6):
        room.done(worker, 3)
    ended = room.events(RoundEnded)[-1]
    assert ended.is_all
    assert ended.offsets == {"0": 3, "2": 3, "3": 3, "1": 3}
    assert room.teams.lending.book.num_committed == 12


def test_the_samples_of_a_lost_site_go_back() -> None:
    room = in_sites()
    for worker in LEADERS:
        room.done(worker, 3)
    lose_team(room, 1)
    lose_team(room, 0)
    book = room.teams.lending.book
    assert book.num_committed == 0
    assert book.num_free == LENGTH - sum(book.order_of(team).given for team in (2, 3))


def test_sites_are_as_they_were_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    room = in_sites(journal=FileJournal(path))
    for worker in LEADERS:
        room.done(worker, 3)
    restart(room, path)
    for worker in range(8):
        room.hello(worker)
    told = [closed for closed in room.told[5] if isinstance(closed, RoundClosed)]
    assert [closed.is_committed for closed in told] == [True, False]
    room.teams.lending.book.take_back(1)
    assert room.teams.lending.book.carried_by([0]) == {1: 3}
    for number in (3, 4, 5):
        for worker in (4, 5, 6, 7):
            room.step_of(worker, number)
    assert room.last(5, RoundOpened).leaders == (4, 6)


def test_fewer_levels_than_are_to_be_held_together_are_refused() -> None:
    room = TeamRoom(4, sync=SYNC, structure=site(0))
    for worker in range(4):
        room.hello(worker)
    for worker in range(4):
        room.ready(worker)
    assert "holds 3 levels together, and the structure has 2" in room.last(0, Refused).reason
