# SPDX-License-Identifier: Apache-2.0
"""Teams whose workers each have their own data: what is lent to whom, lost, and lent again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from federations import TeamRoom, lose_worker, restart, through_epoch

from gangline.coordinator.sanity import check_message
from gangline.coordinator.server.journal import FileJournal
from gangline.protocol.messages import EpochClosed, LeaseAsked, LeaseGranted, Ready, Refused
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision, SamplesGone
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from pathlib import Path

OWNED = ((0, 50), (50, 80), (80, 96))
"""Of 96 samples, which are whose."""
BATCHES = (5, 4, 3)


def owned(*, sync: str = "none", **options: Any) -> TeamRoom:
    room = TeamRoom(3, sync=sync, **options)
    for worker in range(3):
        room.hello(worker)
    for worker in range(3):
        room.ready(worker, owns=OWNED[worker], shares=BATCHES)
    for worker in range(3):
        room.step_of(worker, 0)
    return room


def test_each_has_batches_of_its_own_size_and_is_lent_its_own_samples() -> None:
    room = owned()
    assert [room.view_of(worker).global_batch for worker in range(3)] == [5, 4, 3]
    assert room.lease(1, 0) == (50, 66)
    assert room.lease(0, 0) == (0, 20)
    assert room.lease(2, 0) == (80, 92)
    assert through_epoch(room, 0) == {0: 50, 1: 30, 2: 16}
    assert room.last(0, EpochClosed).is_complete


def test_speeds_change_nobodys_batches() -> None:
    room = owned(sync="percentage(0.5)")
    for number in range(30):
        for worker in range(3):
            room.now += 0.2
            room.step_of(worker, number)
    assert [room.view_of(worker).global_batch for worker in range(3)] == [5, 4, 3]


def test_the_samples_of_a_lost_worker_are_gone_and_the_epoch_is_complete_without_them() -> None:
    room = owned()
    room.lease(1, 0)
    lose_worker(room, 1)
    (gone,) = room.events(SamplesGone)
    assert (gone.worker, gone.epoch, gone.start, gone.stop) == (1, 0, 50, 80)
    (said,) = [one for one in room.events(Decision) if one.what == "lose_team"]
    assert "the 30 samples that only worker 1 has are gone with it" in said.reason
    assert room.teams.lending.book.num_gone == 30
    for epoch in range(2):
        assert through_epoch(room, epoch) == {0: 50, 2: 16}
        assert room.last(0, EpochClosed).is_complete
    assert [room.view_of(worker).whole.samples for worker in (0, 2)] == [8, 8]


def test_after_a_restart_everybody_has_its_own(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    room = owned(journal=FileJournal(journal))
    first = room.lease(0, 0)
    room.lease(1, 0)
    lose_worker(room, 1)
    restart(room, journal)
    for worker in (0, 2):
        room.hello(worker)
    assert room.lease(0, 0) == first
    assert room.teams.lending.book.num_gone == 30
    room.tick()
    assert through_epoch(room, 0) == {0: 50, 2: 16}
    assert room.last(0, EpochClosed).is_complete


def test_what_was_merged_of_a_lost_worker_stays() -> None:
    room = owned(sync="percentage(0.5)")
    for worker in range(3):
        room.lease(worker, 0)
    for number in range(3):
        for worker in range(3):
            room.step_of(worker, number)
    for worker, offset in enumerate((10, 8, 6)):
        room.done(worker, offset)
    lose_worker(room, 1)
    book = room.teams.lending.book
    assert (book.num_committed, book.num_gone) == (24, 22)


def test_who_comes_back_is_a_guest_and_all_stop_to_be_teams_of_their_own_again() -> None:
    room = owned()
    lose_worker(room, 1)
    room.hello(1)
    room.ready(1, owns=OWNED[1], shares=BATCHES)
    room.tick()
    view = room.view_of(1)
    assert (view.members, view.shares) == ((0, 1), (5, 0)), "it computes nothing of another one's"
    assert room.lease(0, 0) == (0, 20)
    for number in (1, 2):
        for worker in range(3):
            room.step_of(worker, number)
    room.tick()
    assert room.teams.is_regrouping
    assert room.lease(0, 1) == (0, 0), "nobody is lent more until all have met"


@pytest.mark.parametrize("sync", ["full", "full/flexible"])
def test_several_workers_cannot_be_made_a_group(sync: str) -> None:
    room = owned()
    with pytest.raises(UsageError, match="choose bsp, which makes the updates that full would"):
        room.hub.set_sync(parse_sync(sync))


def test_who_has_no_samples_is_lent_none() -> None:
    room = TeamRoom(2, sync="local(2)")
    for worker in range(2):
        room.hello(worker)
    room.ready(0, owns=(0, 96), shares=(5, 4), global_batch=5)
    room.ready(1, owns=(96, 96), shares=(5, 4), global_batch=5, only_serves=True)
    room.say(1, LeaseAsked(epoch=0, number=0, length=96))
    granted = room.last(1, LeaseGranted)
    assert granted.start == granted.stop
    assert through_epoch(room, 0) == {0: 96, 1: 0}
    assert room.last(1, EpochClosed).is_complete


def test_an_estate_that_cannot_be_is_refused() -> None:
    said = {"global_batch": 12, "minimum": 1, "allocation": "equal", "shares": None, "seed": 5}
    with pytest.raises(UsageError, match="Ready with owns"):
        check_message(Ready(**said, max_samples=None, owns=(5, 3)))


@pytest.mark.parametrize(("free", "is_enough"), [(2, True), (1, False)])
def test_a_shard_goes_where_there_is_memory_or_the_job_does_not_begin(
    free: int, is_enough: bool
) -> None:
    room = TeamRoom(2, sync="bsp(replicas=0)")
    for worker in range(2):
        room.hello(worker)
    room.ready(0, serving_bytes=2 << 30, free_bytes=1 << 30)
    room.ready(1, serving_bytes=2 << 30, free_bytes=free << 30)
    if is_enough:
        said = [one.reason for one in room.events(Decision) if one.what == "place_shards"]
        assert said == ["the parameters are held by: shard 0 worker 1"]
        return
    reason = room.last(1, Refused).reason
    assert "needs 1 of 2 workers with 2 GiB of memory for a shard" in reason
    assert "worker 0 has room for 1 GiB, worker 1 has room for 1 GiB" in reason
    assert "more servers (servers=2)" in reason
