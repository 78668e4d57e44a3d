# SPDX-License-Identifier: Apache-2.0
"""An operator's orders: pause and go on, keep a worker out and take it back, checkpoint, end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from federations import TeamRoom, founded, restart

from gangline.control.stragglers.ordered import CALL_S
from gangline.coordinator.coordinator import Coordinator
from gangline.coordinator.inputs import (
    CheckpointAsked,
    Connected,
    EndAsked,
    ExclusionAsked,
    PauseAsked,
)
from gangline.coordinator.outputs import Refusal
from gangline.coordinator.server.journal import FileJournal
from gangline.coordinator.settings import Settings
from gangline.protocol.messages import (
    PROTOCOL_VERSION,
    Dismissed,
    Failed,
    Goodbye,
    Held,
    Hello,
    Ping,
    SaveAsked,
    Shown,
    ViewPublished,
)
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision
from gangline.spec.exchange.address import WireAddress
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def in_step(expected: int = 3, **options: Any) -> TeamRoom:
    """Workers that have made their first step."""
    room = TeamRoom(expected, sync="full", **options)
    for worker in range(expected):
        room.hello(worker)
    for worker in range(expected):
        room.ready(worker, keeps_checkpoints=True)
    room.step(0)
    return room


def reasons(room: TeamRoom, what: str) -> list[str]:
    return [one.reason for one in room.events(Decision) if one.what == what]


# --- pausing -----------------------------------------------------------------------------------------


def test_everybody_is_told_to_stand_still_and_to_go_on() -> None:
    room = in_step()
    room.deliver(room.hub.pause(is_paused=True))
    assert [room.last(worker, Held).number for worker in range(3)] == [1, 1, 1]
    assert room.hub.status().is_paused
    with pytest.raises(UsageError, match="paused already"):
        room.hub.pause(is_paused=True)
    room.deliver(room.hub.pause(is_paused=False))
    assert room.last(0, Held).number == 2
    assert not room.hub.status().is_paused
    with pytest.raises(UsageError, match="not paused"):
        room.hub.pause(is_paused=False)
    assert len(reasons(room, "pause")) == len(reasons(room, "resume_steps")) == 1


def test_a_job_that_does_not_train_takes_no_orders() -> None:
    room = TeamRoom(2, sync="full")
    for order in (
        lambda: room.hub.pause(is_paused=True),
        room.hub.ask_checkpoint,
        room.hub.end,
        lambda: room.hub.exclude(0),
        lambda: room.hub.take_back(0),
    ):
        with pytest.raises(UsageError):
            order()


def test_a_paused_job_is_paused_after_its_coordinator_was_killed(journal: Path) -> None:
    room = in_step(journal=FileJournal(journal))
    room.deliver(room.hub.pause(is_paused=True))
    restart(room, journal)
    assert room.hub.status().is_paused
    room.told.clear()
    room.hello(1)
    assert room.last(1, Held).number == 1
    for worker in (0, 2):
        room.hello(worker)
    room.deliver(room.hub.pause(is_paused=False))
    assert room.last(0, Held).number == 2


def test_a_worker_of_a_paused_job_that_dies_is_lost_and_the_job_stays_paused() -> None:
    room = in_step()
    room.deliver(room.hub.pause(is_paused=True))
    room.hub.disconnect(2)
    for _ in range(40):
        room.now += 1.0
        for worker in (0, 1):
            room.say(worker, Ping(sent_s=0.0))
        room.tick()
    assert room.view.members == (0, 1)
    assert room.hub.status().is_paused


def test_teams_are_paused_too_and_newcomers_are_told() -> None:
    room = founded(sync="none")
    room.deliver(room.hub.pause(is_paused=True))
    assert [room.last(worker, Held).number for worker in range(2)] == [1, 1]
    assert room.hub.status().is_paused
    newcomer = room.hello(pid=77)
    assert room.last(newcomer, Held).number == 1


# --- keeping out -------------------------------------------------------------------------------------


def test_a_worker_is_kept_out_whatever_it_shows_until_it_is_taken_back() -> None:
    room = in_step()
    room.deliver(room.hub.exclude(2))
    assert room.view.members == (0, 1)
    assert room.last(2, ViewPublished).is_recovery
    assert not room.has(2, Dismissed)
    group = room.view.group
    room.say(2, Failed(group=group - 1, step=1, error="put out"))
    for step in range(1, 40):
        room.now += 100.0
        room.step(step)
        room.say(2, Shown(slowdown=0.1))
        room.tick()
    assert room.view.members == (0, 1)
    assert room.hub.status().workers[2].state == "spare"
    room.deliver(room.hub.take_back(2))
    room.say(2, Shown(slowdown=1.0))
    room.tick()
    assert set(room.view.members) == {0, 1, 2}
    assert "an operator" in reasons(room, "exclude")[0]
    assert "an operator" in reasons(room, "take_back")[0]


def test_who_was_called_and_did_not_come_is_called_again() -> None:
    room = in_step()
    room.deliver(room.hub.exclude(2))
    room.step(1)
    room.deliver(room.hub.take_back(2))
    room.hub.disconnect(2)
    room.hello(2)
    room.now += CALL_S
    room.say(2, Shown(slowdown=1.0))
    room.tick()
    assert 2 in room.view.members


def test_who_is_kept_out_stays_so_after_the_coordinator_was_killed(journal: Path) -> None:
    room = in_step(journal=FileJournal(journal))
    room.deliver(room.hub.exclude(2))
    restart(room, journal)
    for worker in range(3):
        room.hello(worker)
    room.ready(2)
    room.say(2, Failed(group=0, step=1, error="put out"))
    for step in range(1, 5):
        room.now += 1.0
        room.step(step)
        room.say(2, Shown(slowdown=1.0))
        room.tick()
    assert room.view.members == (0, 1)
    assert room.hub.status().workers[2].state == "spare"
    room.deliver(room.hub.take_back(2))
    room.say(2, Shown(slowdown=1.0))
    room.tick()
    assert 2 in room.view.members


@pytest.mark.parametrize(
    ("order", "worker", "expected"),
    [
        ("exclude", 7, "does not take part"),
        ("take_back", 0, "who is out: nobody"),
    ],
)
def test_orders_that_make_no_sense_say_why(order: str, worker: int, expected: str) -> None:
    room = in_step()
    with pytest.raises(UsageError, match=expected):
        getattr(room.hub, order)(worker)


def test_the_last_member_cannot_be_kept_out() -> None:
    room = in_step(2)
    room.deliver(room.hub.exclude(1))
    with pytest.raises(UsageError, match="kept out already"):
        room.hub.exclude(1)
    with pytest.raises(UsageError, match="only one that trains"):
        room.hub.exclude(0)
    assert room.view.members == (0,)


def test_groups_do_not_part_while_somebody_is_kept_out() -> None:
    room = in_step()
    room.deliver(room.hub.exclude(2))
    with pytest.raises(UsageError, match="worker 2 is kept out"):
        room.hub.set_sync(parse_sync("flexible"))


# --- checkpoints and the end -------------------------------------------------------------------------


def test_a_checkpoint_is_asked_of_everybody_where_one_can_be_kept() -> None:
    room = in_step()
    room.deliver(room.hub.ask_checkpoint())
    assert all(room.has(worker, SaveAsked) for worker in range(3))
    without = TeamRoom(1, sync="full")
    without.hello(0)
    without.ready(0)
    with pytest.raises(UsageError, match="keeps no checkpoints"):
        without.hub.ask_checkpoint()


def test_everybody_leaves_a_job_that_is_ended_spares_and_newcomers_too() -> None:
    room = in_step()
    room.deliver(room.hub.exclude(2))
    room.step(1)
    room.deliver(room.hub.pause(is_paused=True))
    room.deliver(room.hub.end())
    assert room.last(0, Held).number == 2  # it goes on, to end
    assert room.has(2, Dismissed)
    room.tick()
    assert room.view.members == (0,)
    assert room.has(1, Dismissed)
    with pytest.raises(UsageError, match="ended this job"):
        room.hello(pid=55)
    room.say(1, Goodbye(reason="left"))
    room.step(2)
    room.tick()
    assert room.has(0, Dismissed)
    with pytest.raises(UsageError, match="being ended"):
        room.hub.end()


def test_a_job_is_ended_by_the_next_coordinator_too(journal: Path) -> None:
    room = in_step(2, journal=FileJournal(journal))
    assert not room.hub.standing().is_ending
    room.deliver(room.hub.end())
    assert room.hub.standing().is_ending
    restart(room, journal)
    assert room.hub.standing().is_ending
    room.told.clear()
    for worker in range(2):
        room.hello(worker)
    room.step(1)
    room.tick()
    room.tick()
    assert room.view.members == (0,)
    assert room.has(1, Dismissed)


# --- by way of `handle` ------------------------------------------------------------------------------


def test_orders_are_inputs_of_the_coordinator_and_are_refused_in_words() -> None:
    coordinator = Coordinator(Settings(run="r", expected_workers=1), now=0.0)
    address = WireAddress(host="127.0.0.1", port=1)
    hello = Hello(
        protocol=PROTOCOL_VERSION, run="r", worker=0, host="h", pid=1, address=address
    )  # fmt: skip
    coordinator.handle(Connected(hello=hello), 1.0)
    for order in (
        PauseAsked(is_paused=True),
        CheckpointAsked(),
        EndAsked(),
        ExclusionAsked(worker=0, is_out=True),
        ExclusionAsked(worker=0, is_out=False),
    ):
        (refusal,) = coordinator.handle(order, 2.0)
        assert isinstance(refusal, Refusal)
