# SPDX-License-Identifier: Apache-2.0
"""Workers that do not reach a parameter server, though the coordinator hears both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from federations import founded, restart

from gangline.coordinator.server.journal import FileJournal
from gangline.coordinator.serving.complaints import CUT_S
from gangline.protocol.messages import Holds, Ping, Served, Unserved
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from federations import TeamRoom


def complain(room: TeamRoom, worker: int, *, shard: int = 0) -> None:
    number = room.last(worker, Served).serving.number
    room.say(worker, Unserved(number=number, shard=shard, error="no answer"))


def wait(room: TeamRoom, workers: Sequence[int], seconds: float) -> None:
    """Time passes, in which all are heard."""
    for _ in range(int(seconds / 0.5)):
        room.tick(0.5)
        for worker in workers:
            room.say(worker, Ping(sent_s=0.0))


def primary(room: TeamRoom, worker: int) -> int:
    return room.last(worker, Served).serving.shards[0].primary


def leaders(room: TeamRoom) -> list[int]:
    return [team.leader for team in room.teams.active]


def test_shards_leave_a_server_that_most_others_do_not_reach() -> None:
    room = founded(4, sync="asp")
    before = room.last(3, Served).serving.shards[0]
    for worker in (1, 2):
        complain(room, worker)
    wait(room, range(4), CUT_S + 1)
    assert primary(room, 3) == before.replica
    assert leaders(room) == [0, 1, 2, 3], "it trains on"
    assert room.last(3, Served).serving.shards[0].replica not in (before.primary, before.replica)


def test_a_team_that_alone_does_not_reach_a_server_is_given_up() -> None:
    room = founded(4, sync="asp")
    before = primary(room, 3)
    complain(room, 2)
    wait(room, range(4), CUT_S + 1)
    assert primary(room, 3) == before
    assert leaders(room) == [0, 1, 3]


@pytest.mark.parametrize("is_served_again", [True, False])
def test_nothing_happens_to_who_reaches_its_servers_again(is_served_again: bool) -> None:
    room = founded(4, sync="asp")
    complain(room, 2)
    wait(room, range(4), CUT_S - 1)
    if is_served_again:
        room.say(2, Unserved(number=room.last(2, Served).serving.number))
    wait(room, range(4), 3)
    assert leaders(room) == ([0, 1, 2, 3] if is_served_again else [0, 1, 3])


def test_of_two_that_do_not_reach_each_other_one_goes_on() -> None:
    room = founded(2, sync="asp")
    complain(room, 1)
    wait(room, range(2), CUT_S + 1)
    serving = room.last(1, Served).serving
    assert serving.shards[0].primary == 1
    room.say(1, Holds(number=serving.number, shards=(0,)))
    complain(room, 0)
    wait(room, range(2), CUT_S + 1)
    assert leaders(room) == [1]


def test_a_complaint_of_a_shard_that_there_is_not_is_refused() -> None:
    room = founded(2, sync="asp")
    with pytest.raises(UsageError, match="shard 7 of 1"):
        complain(room, 1, shard=7)


def test_who_is_silent_holds_up_no_shard_that_is_to_be_rebuilt() -> None:
    """It has no copy, so that all must say what they have pulled: a stopped server cannot."""
    room = founded(3, sync="asp(replicas=0)")
    for worker in (1, 2):
        complain(room, worker)
    wait(room, range(3), CUT_S + 1)
    serving = room.last(1, Served).serving
    assert serving.is_incomplete
    for worker in (1, 2):
        room.say(worker, Unserved(number=serving.number, known=0))
    wait(room, range(1, 3), 40)
    assert leaders(room) == [1, 2]
    for worker in (1, 2):
        room.say(worker, Unserved(number=room.last(worker, Served).serving.number, known=0))
    assert not room.last(1, Served).serving.is_incomplete


@pytest.mark.parametrize("is_copy", [True, False])
def test_nobody_is_blamed_while_who_holds_a_shard_is_not_connected(
    tmp_path: Path, is_copy: bool
) -> None:
    """A coordinator that was started again waits longer for the absent than for who is cut off."""
    room = founded(4, sync="asp", journal=FileJournal(tmp_path / "journal"))
    before = room.last(3, Served).serving.shards[0]
    dead = before.replica if is_copy else before.primary
    restart(room, tmp_path / "journal")
    alive = [worker for worker in range(4) if worker != dead]
    for worker in alive:
        room.hello(worker)
        number = room.last(worker, Served).serving.number
        room.say(worker, Holds(number=number, shards=(0,) if worker == before.replica else ()))
        complain(room, worker)
    wait(room, alive, 8)
    assert leaders(room) == alive, "the teams of all others train on"
    place = room.last(3, Served).serving.shards[0]
    assert dead not in (place.primary, place.replica)
    assert place.primary == (before.primary if is_copy else before.replica)


def test_a_copy_is_blamed_that_only_its_server_does_not_reach() -> None:
    """All others wait for the team of who serves: nobody else can complain."""
    room = founded(4, sync="bsp")
    before = room.last(3, Served).serving.shards[0]
    complain(room, before.primary)
    wait(room, range(4), CUT_S + 1)
    place = room.last(3, Served).serving.shards[0]
    assert place.primary == before.primary
    assert place.replica not in (before.primary, before.replica)
    assert leaders(room) == [0, 1, 2, 3]
