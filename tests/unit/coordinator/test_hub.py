# SPDX-License-Identifier: Apache-2.0
"""The coordinator's mind, without sockets: messages in, messages out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gangline.coordinator.hub import Hub
from gangline.coordinator.members.lookout import RETURN_S
from gangline.coordinator.server.journal import FileJournal
from gangline.coordinator.settings import Settings
from gangline.eventlog import NullWriter
from gangline.protocol.messages import (
    PROTOCOL_VERSION,
    Dismissed,
    Failed,
    Gathered,
    Goodbye,
    Hello,
    Leaving,
    Measured,
    Ready,
    Refused,
    ViewPublished,
)
from gangline.spec.errors import UsageError
from gangline.spec.exchange.address import WireAddress

if TYPE_CHECKING:
    from pathlib import Path

    from gangline.spec.view import View


class Room:
    """A hub, its clock, and what it has told each worker."""

    def __init__(
        self, expected: int = 2, *, journal: Any = None, plans: Any = None, **settings: Any
    ) -> None:
        self.now = 1000.0
        self.settings = Settings(run="r", expected_workers=expected, **settings)
        self.options = {"journal": journal, "plans": plans}
        self.told: dict[int, list[Any]] = {}
        self.start()

    def start(self) -> None:
        self.hub = Hub(self.settings, events=NullWriter(), clock=lambda: self.now, **self.options)

    def deliver(self, outgoing: list[Any]) -> None:
        for worker, message in outgoing:
            self.told.setdefault(worker, []).append(message)

    def hello(self, worker: int = -1, *, pid: int = 0, is_elastic: bool = True) -> int:
        number, outgoing = self.hub.connect(
            Hello(
                protocol=PROTOCOL_VERSION,
                run="r",
                worker=worker,
                host="h",
                pid=pid or 100 + worker,
                address=WireAddress(host="127.0.0.1", port=pid or 100 + worker),
                is_elastic=is_elastic,
            )
        )
        self.deliver(outgoing)
        return number

    def say(self, worker: int, message: Any) -> None:
        self.deliver(self.hub.receive(worker, message))

    def ready(self, worker: int) -> None:
        self.say(
            worker,
            Ready(
                global_batch=12,
                minimum=1,
                allocation="equal",
                shares=None,
                max_samples=None,
                seed=5,
            ),
        )

    def step(self, number: int) -> None:
        """All members make a step in the newest view."""
        view = self.view
        for worker in view.members:
            self.report(worker, step=number, view=view.number)

    def report(self, worker: int, *, step: int, view: int) -> None:
        """A worker makes a step, in some view."""
        self.say(worker, Measured(step=step, view=view, samples=1, compute_s=0.1))

    def tick(self, after_s: float = 0.0) -> None:
        self.now += after_s
        self.deliver(self.hub.tick())

    @property
    def view(self) -> View:
        view = self.hub.status().view
        assert view is not None
        return view

    def last(self, worker: int, kind: type[Any]) -> Any:
        return [message for message in self.told.get(worker, []) if isinstance(message, kind)][-1]

    def has(self, worker: int, kind: type[Any]) -> bool:
        return any(isinstance(message, kind) for message in self.told.get(worker, []))


def training(expected: int = 2, **options: Any) -> Room:
    """A room in which the founders have made a step."""
    room = Room(expected, **options)
    for worker in range(expected):
        room.hello(worker)
    for worker in range(expected):
        room.ready(worker)
    room.step(0)
    return room


# --- gathering ---------------------------------------------------------------------------------------


def test_workers_without_numbers_found_a_job() -> None:
    room = Room()
    assert [room.hello(pid=7), room.hello(pid=8)] == [0, 1]
    assert room.last(1, Gathered).members == (0, 1)


def test_a_worker_keeps_the_number_that_it_was_given_when_its_line_is_cut() -> None:
    room = Room()
    assert room.hello(pid=7) == 0
    assert room.hello(pid=8) == 1
    assert room.hello(pid=8) == 1


def test_who_goes_before_the_job_begins_is_no_founder() -> None:
    room = Room()
    room.hello(0)
    room.hub.disconnect(0)
    room.hello(1)
    assert not room.told
    room.hello(0, pid=55)
    assert room.last(0, Gathered).members == (0, 1)


def test_early_joiners_wait_for_founders_that_bring_their_numbers() -> None:
    room = Room(reserved=3)
    assert room.hello(pid=7) == 3
    room.hello(0)
    assert not room.told
    room.hello(1)
    assert room.last(3, Gathered).members == (0, 1)
    room.ready(3)
    room.ready(0)
    room.ready(1)
    assert room.view.members == (0, 1)
    room.tick()
    assert room.view.members == (0, 1), "the founders have not found each other yet"
    room.step(0)
    room.tick()
    assert room.view.members == (0, 1, 3)


# --- joining and leaving -----------------------------------------------------------------------------


def test_planned_changes_come_one_at_a_time_and_together() -> None:
    room = training()
    for pid in (7, 8, 9):
        room.ready(room.hello(pid=pid))
        room.tick()
    assert room.view.members == (0, 1, 2)
    room.step(1)
    room.tick()
    assert room.view.members == (0, 1, 2, 3, 4)
    assert not room.last(0, ViewPublished).is_recovery


def test_a_joiner_that_goes_before_its_turn_is_forgotten() -> None:
    room = training()
    room.ready(room.hello(pid=7))
    room.hub.disconnect(2)
    room.tick()
    assert room.view.members == (0, 1)


def test_a_leaver_is_told_of_the_view_without_it_and_that_it_may_go() -> None:
    room = training(3)
    room.say(1, Leaving())
    assert room.view.members == (0, 1, 2)
    room.tick()
    assert room.view.members == (0, 2)
    assert room.view.group == 1
    assert room.last(1, ViewPublished).view == room.view
    assert isinstance(room.told[1][-1], Dismissed)
    assert not room.has(0, Dismissed)


def test_a_leaver_that_lost_the_others_is_not_taken_in_again() -> None:
    room = training(3)
    room.say(1, Leaving())
    room.tick()
    room.told.clear()
    room.say(1, Failed(group=0, step=1, error="broken"))
    assert [type(message) for message in room.told[1]] == [Dismissed]
    room.step(1)
    room.tick()
    assert room.view.members == (0, 2)


def test_everybody_leaves_one_after_the_other() -> None:
    room = training(3)
    for worker in range(3):
        room.say(worker, Leaving())
    room.tick()
    assert room.view.members == (0,)
    assert not room.has(0, Dismissed)
    room.step(1)
    room.tick()
    room.tick()
    assert [type(message) for message in room.told[0]].count(Dismissed) == 1


def test_nobody_leaves_or_joins_over_a_transport_that_cannot_do_it() -> None:
    room = Room()
    for worker in (0, 1):
        room.hello(worker, is_elastic=False)
    for worker in (0, 1):
        room.ready(worker)
    with pytest.raises(UsageError, match="nobody can join this job while it runs"):
        room.hello(pid=7)
    with pytest.raises(UsageError, match="nobody can leave this job while it runs"):
        room.hub.ask_to_leave(1)


def test_the_message_says_who_takes_part_when_another_shall_leave() -> None:
    room = training()
    with pytest.raises(UsageError, match="worker 5 does not take part in this job; who does: 0, 1"):
        room.hub.ask_to_leave(5)


def test_who_waits_is_told_when_the_job_ends() -> None:
    room = training()
    room.ready(room.hello(pid=7))
    room.tick()
    room.ready(room.hello(pid=8))
    for worker in (0, 1):
        room.say(worker, Goodbye(reason="done"))
    assert "the job is over" in room.last(2, Refused).reason
    assert room.last(2, Refused).is_left_behind, "it is no failure of the job"
    assert "the job is over" in room.last(3, Refused).reason
    with pytest.raises(UsageError, match="the job is over"):
        room.hello(pid=9)


def without_worker_2(room: Room) -> None:
    """Worker 2 is put out, and the others see the job to its end."""
    room.say(0, Failed(group=0, step=1, error="broken"))
    room.say(1, Failed(group=0, step=1, error="broken"))
    room.hub.disconnect(2)
    room.tick()
    assert room.view.members == (0, 1)
    room.step(1)
    for worker in (0, 1):
        room.say(worker, Goodbye(reason="done"))


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_worker_that_was_put_out_is_told_that_the_job_ended_without_it(
    is_connected: bool,
) -> None:
    room = training(3)
    without_worker_2(room)
    if is_connected:
        room.say(2, Failed(group=0, step=1, error="broken"))
    else:
        room.hello(2)
    assert room.last(2, Refused).is_left_behind
    assert "the job has ended without this worker" in room.last(2, Refused).reason
    assert not room.has(2, Dismissed)


# --- started again -----------------------------------------------------------------------------------


def restarted(room: Room, path: Path) -> None:
    room.options["journal"] = FileJournal(path)
    room.told.clear()
    room.start()


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def test_view_numbers_go_on_after_a_restart(journal: Path) -> None:
    room = training(journal=FileJournal(journal))
    room.ready(room.hello(pid=7))
    room.tick()
    before = room.view
    restarted(room, journal)
    assert room.view == before
    for worker, pid in ((0, 100), (1, 101), (2, 7)):
        room.hello(worker, pid=pid)
        room.ready(worker)
    assert room.last(2, ViewPublished).view == before
    assert room.last(2, ViewPublished).seed == 5
    room.step(4)
    room.say(1, Leaving())
    room.tick()
    assert room.view.number == before.number + 1
    assert room.view.group == before.group + 1
    assert room.view.members == (0, 2)


def test_nobody_is_lost_before_they_had_time_to_come_back(journal: Path) -> None:
    room = training(3, journal=FileJournal(journal))
    restarted(room, journal)
    room.hello(0)
    room.say(0, Failed(group=0, step=1, error="worker 1 is gone"))
    room.tick(RETURN_S / 2)
    assert room.view.members == (0, 1, 2)
    room.hello(2)
    room.say(2, Failed(group=0, step=1, error="worker 1 is gone"))
    room.tick(RETURN_S)
    assert room.view.members == (0, 2)
    assert room.last(0, ViewPublished).is_recovery


def test_who_missed_a_recovery_is_told_that_it_was_one(journal: Path) -> None:
    room = training(3, journal=FileJournal(journal))
    room.say(0, Failed(group=0, step=1, error="broken"))
    room.hub.disconnect(1)
    room.tick()
    assert room.view.members == (0, 2)
    restarted(room, journal)
    room.hello(2)
    assert room.last(2, ViewPublished).is_recovery


def test_a_leaver_hears_that_it_may_go_from_a_coordinator_that_was_started_again(
    journal: Path,
) -> None:
    room = training(3, journal=FileJournal(journal))
    room.say(1, Leaving())
    room.tick()
    restarted(room, journal)
    room.hello(1)
    assert room.last(1, ViewPublished).view.members == (0, 2)
    assert isinstance(room.told[1][-1], Dismissed)


def test_founders_that_are_not_ready_yet_come_back_to_the_same_job(journal: Path) -> None:
    room = Room(journal=FileJournal(journal))
    room.hello(0)
    room.hello(1)
    room.ready(0)
    restarted(room, journal)
    room.hello(0)
    room.ready(0)
    room.hello(1)
    assert room.last(1, Gathered).members == (0, 1)
    room.ready(1)
    assert room.view.number == 0
