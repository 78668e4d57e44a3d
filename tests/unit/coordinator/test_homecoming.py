# SPDX-License-Identifier: Apache-2.0
"""The end of a job: who is done waits a moment for members that were put out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from test_hub import restarted, training

from gangline.coordinator.members.homecoming import AWAY_S, HOME_S
from gangline.coordinator.server.journal import FileJournal
from gangline.protocol.messages import Failed, Finished, Goodbye, Ping, Refused, Released, Stopped

if TYPE_CHECKING:
    from pathlib import Path

    from test_hub import Room


def put_out(**options: Any) -> Room:
    """A job of three, one of whom is silent and was put out just now."""
    room = training(3, **options)
    for worker in range(3):
        room.report(worker, step=0, view=room.view.number)
    while 1 in room.view.members:
        room.tick(0.5)
        for worker in (0, 2):
            room.say(worker, Ping(sent_s=0.0))
    return room


def finish(room: Room, *workers: int) -> None:
    for worker in workers:
        room.say(worker, Finished(group=room.view.group))


def test_who_is_done_may_go_at_once_when_nobody_was_put_out() -> None:
    room = training(2)
    room.say(0, Finished(group=room.view.group))
    assert room.has(0, Released)
    assert not room.has(1, Released)


def test_who_comes_back_as_the_job_ends_meets_the_others_once_more() -> None:
    room = put_out()
    finish(room, 0, 2)
    assert not room.has(0, Released)
    room.tick(1.0)
    room.say(1, Failed(group=0, step=1, error="aborted"))
    room.tick()
    assert set(room.view.members) == {0, 1, 2}
    assert not room.has(0, Released), "it has to enter the new group"
    finish(room, 0, 2)
    assert room.has(0, Released)
    assert room.has(2, Released)
    for worker in (0, 2):
        room.say(worker, Goodbye(reason="done"))
        room.hub.disconnect(worker)
        room.tick(1.0)
    assert not room.has(1, Refused), "it has the final state"
    finish(room, 1)
    assert room.has(1, Released)


def test_own_variables_are_suspected_when_a_script_ends_before_one_that_came_back(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.jsonl"
    room = put_out(journal=FileJournal(path))
    for worker in (0, 2):
        room.report(worker, step=1, view=room.view.number)
    room.say(1, Failed(group=0, step=1, error="aborted"))
    room.tick()
    assert set(room.view.members) == {0, 1, 2}
    restarted(room, path)
    for worker in range(3):
        room.hello(worker)
    place = (1, 0, 0, 0, 0, 12)
    room.say(0, Goodbye(reason="done", position=place))
    room.hub.disconnect(0)
    group = room.view.group
    room.say(1, Failed(group=group, step=1, error="gone", position=place, call="backward()"))
    room.tick()
    assert "Worker 1 came back or joined" in room.last(1, Stopped).reason


def test_who_stays_away_is_not_waited_for_any_longer() -> None:
    room = put_out()
    finish(room, 0, 2)
    room.tick(HOME_S - 1.0)
    assert not room.has(0, Released)
    room.tick(1.5)
    assert room.has(0, Released)
    assert room.has(2, Released)
    for worker in (0, 2):
        room.say(worker, Goodbye(reason="done"))
    room.say(1, Failed(group=0, step=1, error="aborted"))
    assert room.last(1, Refused).is_left_behind


def test_who_does_not_take_part_any_more_keeps_nobody() -> None:
    room = put_out()
    room.say(1, Finished(group=0))
    room.tick(HOME_S + 1.0)
    assert room.has(1, Released)
    finish(room, 0)
    assert room.has(0, Released)


def test_who_is_gone_is_waited_for_as_long_as_it_takes_to_connect_anew() -> None:
    room = put_out()
    room.hub.disconnect(1)
    finish(room, 0, 2)
    assert not room.has(0, Released), "it may have woken, and take its line for dead"
    room.tick(AWAY_S + 0.1)
    assert room.has(0, Released)
