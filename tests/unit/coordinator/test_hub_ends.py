# SPDX-License-Identifier: Apache-2.0
"""Members whose scripts end: at the same place, early, or because they were asked to."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from test_hub import Room, restarted, training

from gangline.control.members.watch import GRACE_S, MIN_PATIENCE_S
from gangline.coordinator.server.journal import FileJournal
from gangline.protocol.messages import (
    Failed,
    Finished,
    Goodbye,
    Leaving,
    Measured,
    Ping,
    Released,
    Stopped,
    ViewPublished,
)

SOON = GRACE_S + 0.01
PLACE = (1, 0, 0, 0, 0, 12)


def end(room: Room, worker: int, position: tuple[int, ...] = PLACE) -> None:
    room.say(worker, Goodbye(reason="done", position=position))
    room.hub.disconnect(worker)


def fail(room: Room, worker: int, position: tuple[int, ...] = PLACE) -> None:
    group = room.view.group
    room.say(
        worker,
        Failed(group=group, step=1, error="gone", position=position, call="backward()"),
    )


def test_nobody_goes_on_when_a_script_has_ended_early() -> None:
    room = training(3)
    end(room, 0)
    fail(room, 2)
    for worker in (1, 2):
        assert "worker 0 ended its script after 1 step" in room.last(worker, Stopped).reason
    assert not room.has(0, Stopped)
    assert room.view.members == (0, 1, 2), "the others do not become a smaller group"
    assert room.hub.mind.is_over


def test_who_missed_it_is_told_when_it_comes_back() -> None:
    room = training(3)
    room.hub.disconnect(1)
    end(room, 0)
    fail(room, 2)
    room.told.clear()
    room.hello(1)
    assert room.has(1, Stopped)
    fail(room, 1)
    assert room.has(1, Stopped)


def test_scripts_that_end_at_one_place_end_well() -> None:
    room = training(3)
    end(room, 0)
    room.now += 5 * MIN_PATIENCE_S  # the others save, and evaluate
    for worker in (1, 2):
        room.say(worker, Ping(sent_s=0.0))
    room.tick(SOON)
    assert room.view.members == (0, 1, 2)
    for worker in (1, 2):
        end(room, worker)
    assert room.hub.mind.is_over
    assert not any(room.has(worker, Stopped) for worker in range(3))


def test_who_waits_for_one_that_has_ended_is_told() -> None:
    room = training(3)
    end(room, 0)
    room.now += 5 * MIN_PATIENCE_S
    room.say(1, Ping(sent_s=0.0, waiting_s=4.0))
    room.say(2, Ping(sent_s=0.0))
    room.tick(SOON)
    assert "worker 1 is still there, and waiting" in room.last(1, Stopped).reason
    assert room.has(2, Stopped)


def test_the_others_go_on_when_one_was_asked_to_leave_or_ended_with_an_error() -> None:
    room = training(3)
    room.say(1, Leaving())
    end(room, 1)
    end(room, 2, ())
    fail(room, 0)
    room.tick(SOON)
    assert not room.has(0, Stopped)
    assert room.view.members == (0,)


def test_who_did_not_get_the_last_result_goes_on_without_the_one_that_ended() -> None:
    room = training(3)
    end(room, 0, (2, 0, 1, 0, 0, 24))
    room.hub.disconnect(1)  # it was killed in the exchange that the other has the result of
    fail(room, 2)
    room.tick(SOON)
    assert not room.has(2, Stopped)
    assert room.last(2, ViewPublished).view.members == (2,)


def test_an_early_end_is_remembered_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    room = training(3, journal=FileJournal(path))
    end(room, 0)
    restarted(room, path)
    for worker in (1, 2):
        room.hello(worker)
    fail(room, 1)
    room.tick(4.0)
    assert "worker 0 ended its script" in room.last(1, Stopped).reason


def test_workers_that_cannot_see_others_go_learn_why_one_is_gone() -> None:
    room = Room(2)
    for worker in range(2):
        room.hello(worker, is_elastic=False)
    for worker in range(2):
        room.ready(worker)
    room.step(0)
    fail(room, 1)
    assert not room.has(1, Stopped)
    room.tick(SOON)
    assert room.view.members == (0, 1), "nobody is put out"
    end(room, 0)
    assert room.has(1, Stopped)


def test_a_late_report_does_not_pass_a_lost_worker_for_one_that_is_there() -> None:
    """It wakes, its report of before comes first, and the others must still wait for it."""
    room = training(3)
    fail(room, 0)
    fail(room, 2)
    room.hub.disconnect(1)
    room.tick(SOON)
    assert room.view.members == (0, 2)
    room.hello(1)
    measured = Measured(step=0, view=0, samples=4, compute_s=0.1, exchange_s=0.1)
    for worker in (0, 2):
        room.say(worker, Finished(group=room.view.group))
    room.say(1, measured)
    room.tick(0.05)
    assert not room.has(0, Released), "it would end with an old state"
    room.say(1, Failed(group=0, step=1, error="gone", position=PLACE, call="backward()"))
    room.tick(0.05)
    assert room.view.members == (0, 2, 1)
