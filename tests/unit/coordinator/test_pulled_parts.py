# SPDX-License-Identifier: Apache-2.0
"""The coordinator hands out parts of global batches, to members of a group that it knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from test_hub import Room

from gangline.coordinator.members.lookout import RETURN_S
from gangline.coordinator.sanity import check_message
from gangline.coordinator.server.journal import FileJournal
from gangline.protocol.messages import Failed, PartAsked, PartGiven, Ready, ViewPublished
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def asked(number: int = 0, **fields: Any) -> PartAsked:
    known = {"group": 0, "epoch": 0, "step": 0, "start": 0, "stop": 12, "number": number}
    return PartAsked(**{**known, **fields})


def training(
    allocation: str = "self-scheduled(SS, grain=4)", workers: int = 2, journal: Any = None
) -> Room:
    room = Room(workers, journal=journal)
    for worker in range(workers):
        room.hello(worker)
    for worker in range(workers):
        ready = Ready(
            global_batch=12,
            minimum=1,
            allocation=allocation,
            shares=None,
            max_samples=None,
            seed=5,
        )
        room.say(worker, ready)
    return room


def given(room: Room, worker: int) -> list[tuple[int, int]]:
    """The parts that a worker was told of, until now."""
    told = [one for one in room.told[worker] if isinstance(one, PartGiven)]
    assert not any(one.void for one in told), told
    return [(one.start, one.stop) for one in told]


def test_parts_are_handed_out_until_none_is_left_and_told_again_as_they_were() -> None:
    room = training()
    for worker, number in ((0, 0), (1, 0), (1, 1), (0, 1), (1, 1), (0, 0)):
        room.say(worker, asked(number))
    assert given(room, 0) == [(0, 4), (0, 0), (0, 4)]
    assert given(room, 1) == [(4, 8), (8, 12), (8, 12)]


def test_workers_are_told_that_parts_are_pulled_and_shares_are_equal() -> None:
    for allocation, pulled in (("self-scheduled", True), ("equal", False)):
        (view,) = [one for one in training(allocation).told[0] if isinstance(one, ViewPublished)]
        assert view.pulled == (allocation if pulled else "")
        assert view.view.shares == (6, 6)


def test_a_coordinator_that_was_started_again_hands_out_nothing_to_older_groups(
    tmp_path: Path,
) -> None:
    room = training(journal=FileJournal(tmp_path / "journal.jsonl"))
    room.say(0, asked())
    room.options["journal"] = FileJournal(tmp_path / "journal.jsonl")
    room.start()
    for worker in (0, 1):
        room.hello(worker)
        room.say(worker, asked(step=1))
        assert "started again" in room.told[worker][-1].void
    for worker in (0, 1):
        room.say(worker, Failed(group=0, step=0, error="no more parts", position=(0,) * 5))
    room.tick(after_s=2 * RETURN_S)
    assert (room.view.group, room.view.members) == (1, (0, 1)), "nobody was taken to be lost"
    room.told.clear()
    for worker in (0, 1):
        room.say(worker, asked(group=1))
    assert [given(room, 0), given(room, 1)] == [[(0, 4)], [(4, 8)]]
    room.say(0, asked(group=0))
    assert "another group" in room.told[0][-1].void


@pytest.mark.parametrize(
    ("worker", "question", "said"),
    [
        (2, asked(), "worker 2 is not in the group"),
        (0, asked(group=1), "worker 0 is not in the group"),
        (0, asked(number=1), "part 1 was asked for, and 0 were handed out"),
    ],
    ids=["a stranger", "a group to come", "a part that was left out"],
)
def test_nobody_gets_parts_that_nobody_would_compute(
    worker: int, question: PartAsked, said: str
) -> None:
    room = training()
    room.hello(2)
    room.say(
        2,
        Ready(
            global_batch=12,
            minimum=1,
            allocation="equal",
            shares=None,
            max_samples=None,
            seed=5,
        ),
    )
    room.say(worker, question)
    assert said in room.told[worker][-1].void
    room.say(1, asked())
    assert given(room, 1) == [(0, 4)], "the others get what they would have got"


def test_where_nothing_is_pulled_a_question_is_refused() -> None:
    room = training("balanced")
    with pytest.raises(UsageError, match="no parts are pulled in this job"):
        room.say(0, asked())


@pytest.mark.parametrize(
    "fields", [{"stop": 0}, {"number": -1}, {"compute_s": float("nan")}, {"group": -1}], ids=str
)
def test_questions_that_no_worker_can_mean_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="no worker can mean that"):
        check_message(asked(**fields))
