# SPDX-License-Identifier: Apache-2.0
"""Who is lost before there is a view, who is cut from its peers, who ran out of memory."""

from __future__ import annotations

import concurrent.futures
import contextlib
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.append(str(Path(__file__).parent))

from test_hub import Room, restarted, training

from gangline.control.members.watch import GRACE_S, MIN_PATIENCE_S
from gangline.coordinator.losses import MAX_GATHERINGS
from gangline.coordinator.members.reach import ANSWER_S, MAX_PAUSE_S, CutWorkers, find_cut
from gangline.coordinator.server.journal import FileJournal
from gangline.protocol.lifeline import ProcessEnded
from gangline.protocol.messages import (
    FINISHED,
    PROTOCOL_VERSION,
    Dismissed,
    Exhausted,
    Failed,
    Gathered,
    Goodbye,
    Hello,
    Leaving,
    Ping,
    Probe,
    Probed,
    Ready,
    Refused,
    ViewPublished,
    founders_group,
)
from gangline.spec.exchange.address import WireAddress
from gangline.worker.line.probing import KNOCKS_S, TIMEOUT_S, find_reached

if TYPE_CHECKING:
    from collections.abc import Iterator

SOON = GRACE_S + 0.01


# --- before there is a view --------------------------------------------------------------------------


def ready(room: Room, worker: int, *, attempt: int) -> None:
    room.say(
        worker,
        Ready(
            global_batch=12,
            minimum=1,
            allocation="equal",
            shares=(1.0, 2.0, 3.0),
            max_samples=None,
            seed=5,
            attempt=attempt,
        ),
    )


def gathered(workers: int) -> Room:
    room = Room(workers)
    for worker in range(workers):
        room.hello(worker)
    return room


def test_the_founders_gather_again_when_one_is_gone() -> None:
    room = gathered(3)
    ready(room, 2, attempt=0)
    room.hub.disconnect(1)
    room.tick(SOON)
    told = room.last(2, Gathered)
    assert (told.members, told.attempt) == ((0, 2), 1)
    assert [address.port for address in told.addresses] == [100, 102]
    ready(room, 0, attempt=1)
    assert room.hub.status().view is None, "worker 2 was ready in another gathering"
    ready(room, 2, attempt=1)
    assert room.view.members == (0, 2)
    assert room.view.shares == (3, 9), "as much as was given for those that are left"


def test_a_founder_that_comes_back_too_late_joins() -> None:
    room = gathered(3)
    room.hub.disconnect(1)
    room.tick(SOON)
    room.hello(1)
    told = room.last(1, Gathered)
    assert (told.members, told.attempt) == ((0, 2), 1)
    ready(room, 1, attempt=1)
    for worker in (0, 2):
        ready(room, worker, attempt=1)
    room.step(0)
    room.tick()
    assert room.view.members == (0, 2, 1)


def test_founders_are_asked_whom_they_reach_when_they_lose_each_other() -> None:
    room = gathered(3)
    room.say(0, Failed(group=founders_group(0), step=0, error="no connection"))
    room.tick(SOON)
    for worker, reached in ((0, (0, 1)), (1, (0, 1)), (2, (2,))):
        room.say(worker, Probed(number=room.last(worker, Probe).number, reached=reached))
    assert room.last(0, Gathered).members == (0, 1)
    assert room.last(2, Gathered).members == (0, 1)


def test_founders_are_refused_when_they_never_get_in_touch() -> None:
    room = gathered(2)
    for attempt in range(MAX_GATHERINGS):
        assert not room.has(0, Refused)
        room.say(0, Failed(group=founders_group(attempt), step=0, error="no handshake"))
        room.tick(SOON)
        for worker in (0, 1):
            room.say(worker, Probed(number=room.last(worker, Probe).number, reached=(0, 1)))
    assert "the founders do not get in touch" in room.last(1, Refused).reason
    assert "no handshake" in room.last(1, Refused).reason


def test_a_failure_of_an_earlier_gathering_is_old_news() -> None:
    room = gathered(3)
    room.hub.disconnect(1)
    room.tick(SOON)
    room.say(0, Failed(group=founders_group(0), step=0, error="worker 1 is gone"))
    room.tick(SOON)
    assert room.last(0, Gathered).attempt == 1
    assert not room.has(0, Probe)


def test_a_worker_that_ended_before_it_came_is_not_waited_for() -> None:
    room = Room(3)
    room.hello(0)
    room.hello(2)
    assert not room.told
    ended = ProcessEnded(worker=1, has_failed=True)
    room.deliver(room.hub.note_ended(ended))
    assert room.last(2, Gathered).members == (0, 2)
    assert room.hub.note_ended(ended) == [], "the job has begun"


def test_who_is_known_to_have_ended_is_not_awaited_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    room = training(3, journal=FileJournal(path))
    restarted(room, path)
    room.hello(0)
    room.hello(2)
    room.say(0, Failed(group=0, step=1, error="worker 1 is gone"))
    room.tick(SOON)
    assert room.view.members == (0, 1, 2), "it may be on its way back"
    room.deliver(room.hub.note_ended(ProcessEnded(worker=1, has_failed=True)))
    assert room.view.members == (0, 2), "its process is no more"


def test_whoever_ended_well_is_not_taken_to_be_lost(tmp_path: Path) -> None:
    room = training(3)
    room.deliver(room.hub.note_ended(ProcessEnded(worker=1, has_failed=False)))
    room.tick(10.0)
    assert room.hub.mind.present == (0, 1, 2), "its goodbye is on its way"


def test_the_last_worker_stays_until_a_newcomer_is_in() -> None:
    room = training(1)
    newcomer = room.hello(pid=7)
    room.say(0, Leaving())
    room.tick()
    assert not room.has(0, Dismissed), "somebody must be there whose state the newcomer copies"
    room.ready(newcomer)
    room.tick()
    assert room.view.members == (0, newcomer)
    room.step(1)
    room.tick()
    assert room.view.members == (newcomer,)
    assert room.has(0, Dismissed)


def test_the_last_worker_goes_when_the_newcomer_does_not_come() -> None:
    room = training(1)
    newcomer = room.hello(pid=7)
    room.say(0, Leaving())
    room.tick()
    room.hub.disconnect(newcomer)
    room.tick()
    assert room.has(0, Dismissed)


def test_a_newcomer_that_is_ready_when_the_job_is_over_is_told_so() -> None:
    room = training(1)
    newcomer = room.hello(pid=7)
    room.say(0, Goodbye(reason=FINISHED))
    room.told.clear()
    room.ready(newcomer)
    assert "the job is over" in room.last(newcomer, Refused).reason


def test_founders_that_were_lost_are_not_expected_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    room = Room(3, journal=FileJournal(path))
    for worker in range(3):
        room.hello(worker)
    room.hub.disconnect(1)
    room.tick(SOON)
    restarted(room, path)
    for worker in (0, 2):
        room.hello(worker)
        ready(room, worker, attempt=1)
    assert room.view.members == (0, 2)


# --- while joining -----------------------------------------------------------------------------------


def test_a_joiner_that_dies_is_put_out_at_once_while_the_others_still_train() -> None:
    room = training()
    room.ready(room.hello(pid=7))
    before = room.view
    room.tick()
    assert room.view.members == (0, 1, 2)
    room.hub.disconnect(2)
    for number in (1, 2):  # cut by the view before: the members have not switched yet
        room.now += SOON / 2
        for worker in (0, 1):
            room.report(worker, step=number, view=before.number)
    room.tick(SOON / 2)
    assert room.view.members == (0, 1)


def test_a_member_whose_line_is_down_stays_while_the_others_still_train() -> None:
    room = training()
    room.ready(room.hello(pid=7))
    before = room.view
    room.tick()
    room.hub.disconnect(1)
    for number in range(1, 5):
        room.now += SOON / 2
        room.report(0, step=number, view=before.number)
        room.tick()
    assert room.view.members == (0, 1, 2)


# --- cut from the others -----------------------------------------------------------------------------


def stalled(workers: int = 3) -> Room:
    """A room in which everybody waits for everybody."""
    room = training(workers)
    room.now += 5 * MIN_PATIENCE_S + 1
    for worker in range(workers):
        room.say(worker, Ping(sent_s=0.0, waiting_s=5 * MIN_PATIENCE_S + 0.5))
    room.tick()
    return room


def answer(room: Room, worker: int, *reached: int) -> None:
    room.say(worker, Probed(number=room.last(worker, Probe).number, reached=reached))


def test_members_are_asked_when_all_wait_for_each_other() -> None:
    room = stalled()
    probe = room.last(1, Probe)
    assert probe.workers == (0, 1, 2)
    assert [address.port for address in probe.addresses] == [100, 101, 102]


def test_nobody_is_asked_while_one_computes() -> None:
    room = training(3)
    room.now += 100.0
    for worker, waiting_s in enumerate((90.0, 90.0, 0.0)):
        room.say(worker, Ping(sent_s=0.0, waiting_s=waiting_s))
    room.tick()
    assert not room.has(0, Probe)


def test_who_is_cut_from_its_peers_is_put_out_and_told() -> None:
    room = stalled()
    answer(room, 0, 0, 1)
    answer(room, 1, 0, 1)
    assert room.view.members == (0, 1, 2)
    answer(room, 2, 2)
    assert room.view.members == (0, 1)
    assert "worker 2 cut from its peers, 2 reach each other" in room.view.reason
    told = room.last(2, ViewPublished)
    assert told.view == room.view
    assert told.is_recovery


def test_who_does_not_answer_is_judged_by_the_others() -> None:
    room = stalled()
    answer(room, 0, 0, 1)
    answer(room, 1, 0, 1)
    for worker in range(3):
        room.say(worker, Ping(sent_s=0.0))
    room.tick(ANSWER_S + 0.1)
    assert room.view.members == (0, 1)


def test_nothing_changes_when_all_reach_each_other_and_much_is_on_its_way() -> None:
    room = stalled()
    for worker in range(3):
        answer(room, worker, 0, 1, 2)
    assert room.view.number == 0
    room.told.clear()
    room.tick()
    assert not room.told, "it is asked again only after twice the time"


def test_who_was_cut_is_taken_in_when_it_reaches_the_others_again() -> None:
    room = stalled()
    for worker, reached in enumerate(((0, 1), (0, 1), (2,))):
        answer(room, worker, *reached)
    room.say(2, Failed(group=0, step=1, error="broken off"))
    room.step(1)
    room.told.clear()
    pauses = []
    for _ in range(4):
        waited = 0.0
        while not room.told.get(2):
            room.tick(0.25)
            waited += 0.25
            for worker in (0, 1, 2):
                room.hub.receive(worker, Ping(sent_s=0.0))
        pauses.append(waited)
        assert room.view.members == (0, 1)
        last = room.last(2, Probe)
        room.told.clear()
        room.say(2, Probed(number=last.number, reached=(2,)))
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1], "ever more seldom"
    room.say(2, Probed(number=last.number, reached=(0, 1)))
    room.tick()
    assert room.view.members == (0, 1, 2)


def test_a_second_failure_in_a_row_is_looked_into() -> None:
    room = training(2)
    for worker in (0, 1):
        room.say(worker, Failed(group=0, step=1, error="broken"))
    assert room.view.group == 1, "the first time it is just tried again"
    room.say(0, Failed(group=1, step=1, error="no route"))
    room.tick(SOON)
    assert room.view.group == 1
    answer(room, 0, 0, 1)
    answer(room, 1, 0, 1)
    assert room.view.group == 2
    assert "all reach each other" in room.view.reason


@pytest.mark.parametrize(
    ("reached", "cut"),
    [
        ({0: {1, 2}, 1: {0, 2}, 2: {0, 1}}, ()),
        ({0: {1}, 1: {0}, 2: set()}, (2,)),
        ({0: set(), 1: {2}, 2: {1}}, (0,)),
        ({0: {1, 2}, 1: {0, 2}, 2: set()}, (2,)),
        ({0: {1}, 1: {0}}, (2,)),
        ({0: set(), 1: set(), 2: set()}, (2, 1)),
        ({0: {1}, 1: {0}, 2: {3, 4}, 3: {2, 4}, 4: {2, 3}}, (1, 0)),
        ({0: {1}, 1: {0}, 2: {3}, 3: {2}}, (3, 2)),
        ({0: {2}, 1: {2}, 2: {0, 1}}, (1,)),
    ],
)
def test_the_most_isolated_go(reached: dict[int, set[int]], cut: tuple[int, ...]) -> None:
    members = tuple(range(max(3, len(reached))))
    assert find_cut(members, {k: frozenset(v) for k, v in reached.items()}) == cut


def test_pauses_grow_to_a_limit_also_when_a_worker_was_taken_in_between() -> None:
    cut = CutWorkers()
    cut.add(4, 0.0)
    cut.want_in(4)
    now, pauses = 0.0, []
    for _ in range(8):
        last = now
        while not cut.due(now):
            now += 0.5
        pauses.append(now - last)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, MAX_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S]
    cut.heal(4)
    assert 4 not in cut
    assert cut.due(now + 1000) == ()
    cut.add(4, now)
    cut.want_in(4)
    assert cut.due(now + MAX_PAUSE_S / 2) == ()
    cut.forget(4)
    cut.add(4, now)
    cut.want_in(4)
    assert cut.due(now + 1.0) == (4,)


def test_a_knock_tells_who_can_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as open_door:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            nobody = closed.getsockname()[1]
        ports = {3: open_door.getsockname()[1], 5: nobody}
        addresses = {w: WireAddress(host="127.0.0.1", port=port) for w, port in ports.items()}
        assert find_reached(addresses) == [3]


@contextlib.contextmanager
def deaf_door() -> Iterator[socket.socket]:
    """A door that answers nobody, as if packets to it were dropped: its queue is full."""
    with contextlib.ExitStack() as stack:
        door = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        caller = stack.enter_context(socket.create_connection(door.getsockname()))
        assert caller.getpeername() == door.getsockname()
        yield door


def address_of(door: socket.socket) -> WireAddress:
    return WireAddress(host="127.0.0.1", port=door.getsockname()[1])


def test_who_does_not_answer_a_knock_is_not_reached_after_a_second() -> None:
    with deaf_door() as deaf, socket.create_server(("127.0.0.1", 0)) as heard:
        started_s = time.monotonic()
        assert find_reached({1: address_of(deaf), 3: address_of(heard)}) == [3]
        assert time.monotonic() - started_s >= TIMEOUT_S, "it was given its time"
    assert TIMEOUT_S <= 1.0
    assert 2 * TIMEOUT_S <= ANSWER_S


def test_a_knock_that_gets_lost_is_repeated_before_the_system_does_so() -> None:
    with deaf_door() as door, concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(find_reached, {7: address_of(door)})
        concurrent.futures.wait([asked], timeout=KNOCKS_S[1] / 2)
        assert not asked.done(), "the first knock was lost"
        door.accept()[0].close()
        assert asked.result() == [7]


# --- out of memory -----------------------------------------------------------------------------------


def replacement(number: int, *, replaces: int) -> Hello:
    return Hello(
        protocol=PROTOCOL_VERSION,
        run="r",
        worker=number,
        host="h",
        pid=900 + number,
        address=WireAddress(host="127.0.0.1", port=900 + number),
        replaces=replaces,
    )


@pytest.mark.parametrize("is_restarted", [False, True])
def test_who_takes_the_place_of_one_that_ran_out_of_memory_gets_less(
    tmp_path: Path, is_restarted: bool
) -> None:
    path = tmp_path / "journal.jsonl"
    options: dict[str, Any] = {"reserved": 5, "journal": FileJournal(path)}
    room = training(**options)
    room.say(1, Exhausted(max_samples=4))
    room.hub.disconnect(1)
    room.say(0, Failed(group=0, step=1, error="worker 1 is gone"))
    assert room.view.members == (0,)
    room.step(1)
    if is_restarted:
        restarted(room, path)
        room.hello(0)
        room.step(2)
    room.deliver(room.hub.connect(replacement(2, replaces=1))[1])
    room.ready(2)
    room.tick()
    assert room.view.members == (0, 2)
    assert room.view.shares == (8, 4)
