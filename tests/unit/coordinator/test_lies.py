# SPDX-License-Identifier: Apache-2.0
"""What a worker with a valid token may claim, and what becomes of claims that cannot be."""

from __future__ import annotations

import math
import re

import msgspec
import pytest
from checkpoint_jobs import INTRODUCTION
from test_hub import Room

from gangline.coordinator.reports.tally import DOUBTS_TOLD, MAX_AHEAD, Tally
from gangline.coordinator.sanity import MAX_TEXT, check_message
from gangline.engines.result import WorkerResult
from gangline.engines.supervision import _should_stop
from gangline.protocol.messages import (
    MAX_SUMMED,
    FromTeam,
    LeaseAsked,
    Measured,
    Noted,
    Reached,
    Ready,
    Refused,
    RoundDone,
    RoundFailed,
    Told,
)
from gangline.spec.errors import UsageError
from gangline.worker.prepare.preparation import Options


def training(workers: int = 2) -> Room:
    room = Room(workers)
    for worker in range(workers):
        room.hello(worker)
    for worker in range(workers):
        room.ready(worker)
    room.step(0)
    return room


def ready(**traits: str) -> Ready:
    return Ready(
        global_batch=12,
        minimum=1,
        allocation="equal",
        shares=None,
        max_samples=None,
        seed=5,
        traits={"data_set_length": "46", "parameters": "p", **traits},
    )


def refusals(room: Room, worker: int) -> list[str]:
    return [told.reason for told in room.told.get(worker, []) if isinstance(told, Refused)]


def test_a_newcomer_that_trains_something_else_is_refused_by_name() -> None:
    room = Room(2)
    for worker in (0, 1):
        room.hello(worker)
    for worker in (0, 1):
        room.say(worker, ready())
    room.step(0)
    for worker, traits in ((2, {"data_set_length": "47"}), (3, {"parameters": "q"}), (4, {})):
        room.hello(worker)
        room.say(worker, ready(**traits))
    room.tick()
    assert refusals(room, 2) == [
        "worker 2 differs from the members in data set length: 47 instead of 46. Start it with the "
        "script, arguments and data of the job"
    ]
    assert "worker 3 differs from the members in parameters: q instead of p" in refusals(room, 3)[0]
    assert refusals(room, 4) == []
    assert room.view.members == (0, 1, 4)


def test_a_newcomer_is_compared_later_when_it_came_before_the_founders_were_ready() -> None:
    room = Room(2, reserved=2)
    for worker in (0, 1):
        room.hello(worker)
    early = room.hello()
    room.say(early, ready(data_set_length="47"))
    for worker in (0, 1):
        room.say(worker, ready())
    room.step(0)
    room.tick()
    assert len(refusals(room, early)) == 1
    assert room.view.members == (0, 1)


def test_long_traits_are_told_by_their_hash() -> None:
    mine = INTRODUCTION.traits()
    other = msgspec.structs.replace(INTRODUCTION, parameters=("w (2,)",) * 1000).traits()
    assert mine["global_batch"] == repr(INTRODUCTION.global_batch)
    assert other["parameters"].startswith("those with the hash ")
    assert {name for name in mine if mine[name] != other[name]} == {"parameters"}
    check_message(ready(**other))


def test_a_report_of_more_samples_than_a_step_has_is_refused() -> None:
    room = training()
    lie = Measured(step=1, view=room.view.number, samples=13, compute_s=1e-9)
    with pytest.raises(UsageError, match="samples = 13: a step of view 0 has 12"):
        room.say(1, lie)


@pytest.mark.parametrize("name", ["", "n" * 101, "\ud800", "a\x1b[2J", "a\nb", "\u202eb"])
def test_a_logged_name_that_cannot_be_printed_is_refused(name: str) -> None:
    check_message(Noted(step=1, samples=1, values={"n" * 100: 1.0, "Verlust/ä b": math.nan}))
    with pytest.raises(UsageError, match="no worker can mean that") as error:
        check_message(Noted(step=1, samples=1, values={name: 1.0}))
    assert str(error.value).isprintable()


def test_a_report_of_a_view_that_nobody_published_is_refused() -> None:
    room = training()
    with pytest.raises(UsageError, match="view = 7: 0 is the newest"):
        room.report(1, step=1, view=7)


def test_a_report_before_the_first_view_is_refused() -> None:
    room = Room(2)
    room.hello(0)
    with pytest.raises(UsageError, match="-1 is the newest"):
        room.report(0, step=0, view=0)


def test_a_member_that_claims_steps_far_ahead_disturbs_nobody_and_is_named() -> None:
    room = training()
    for number in range(200):
        room.report(1, step=10**12 + number, view=0)
    status = room.hub.status()
    assert status.step == 0
    assert sum("worker 1 claims step" in said for said in status.decisions) == 1
    for number in range(1, 5):
        room.step(number)
    assert room.hub.status().step == 4, "the others' reports still count"


def test_steps_far_ahead_are_believed_when_another_member_says_the_same() -> None:
    tally = Tally((0, 1, 2))
    assert not tally.believes(0, 50_000)  # a coordinator that was started again knows nobody's step
    assert tally.believes(1, 50_000)
    assert tally.believes(0, 50_001)
    assert not tally.must_tell(0)


def test_steps_ahead_are_believed_when_the_group_before_was_there() -> None:
    tally = Tally((0, 1), reached=50_000)
    assert tally.believes(0, 50_001)
    assert tally.believes(1, 50_000 + MAX_AHEAD)
    assert Tally((0,)).believes(0, 50_000), "who is alone has nobody to ask"


def test_a_member_is_named_once_when_it_goes_on_claiming() -> None:
    tally = Tally((0, 1))
    told = []
    for number in range(3 * DOUBTS_TOLD):
        tally.believes(0, 10**9 + number)
        told.append(tally.must_tell(0))
    assert sum(told) == 1


DONE = RoundDone(number=0, epoch=0, offset=0, busy_s=0, exchange_s=0, drift=0, sent_bytes=0)
PLACE = Reached(epoch=0, offset=0, step=0, is_end=False)


@pytest.mark.parametrize(
    ("lie", "field"),
    [
        (LeaseAsked(epoch=-1, number=0, length=8), "epoch = -1"),
        (LeaseAsked(epoch=0, number=1 << 60, length=8), "number = "),
        (LeaseAsked(epoch=0, number=0, length=-8), "length = -8"),
        (msgspec.structs.replace(PLACE, offset=-1), "offset = -1"),
        (msgspec.structs.replace(PLACE, step=1 << 47), "step = "),
        (msgspec.structs.replace(PLACE, after=-2), "after = -2"),
        (msgspec.structs.replace(DONE, busy_s=math.nan), "busy_s = nan"),
        (msgspec.structs.replace(DONE, exchange_s=math.inf), "exchange_s = inf"),
        (msgspec.structs.replace(DONE, drift=-1.0), "drift = -1.0"),
        (msgspec.structs.replace(DONE, sent_bytes=-1), "sent_bytes = -1"),
        (RoundFailed(number=0, error="x" * (MAX_TEXT + 1)), "error = 'xxx"),
        (Told(epoch=0, call=0, values=(0.0,) * (MAX_SUMMED + 1)), "values = "),
    ],
)
def test_what_no_team_can_mean_is_refused_by_name(lie: FromTeam, field: str) -> None:
    with pytest.raises(UsageError, match=f"{type(lie).__name__} with {re.escape(field)}"):
        check_message(lie)


def test_a_sum_may_be_of_numbers_that_are_none() -> None:
    check_message(Told(epoch=0, call=0, values=(math.nan, math.inf)))


def test_the_others_go_on_when_a_worker_was_put_out_for_its_gradient() -> None:
    traceback = (
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
        "gangline.spec.errors.GradientError: the gradient of worker 1 is not finite at step 3\n"
    )
    out = WorkerResult(worker=1, exit_code=1, signal=None, traceback=traceback)
    assert out.was_put_out
    assert not _should_stop([out], keeps_going=False)


def test_the_others_go_on_when_a_worker_was_refused_while_it_trained() -> None:
    traceback = (
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
        "gangline.spec.errors.{}: the coordinator refused this worker: Measured with step = -1\n"
    )
    out, never_in = (
        WorkerResult(worker=1, exit_code=1, signal=None, traceback=traceback.format(error))
        for error in ("RefusedError", "LaunchError")
    )
    assert not _should_stop([out], keeps_going=False)
    assert _should_stop([never_in], keeps_going=False), "all workers may have that in common"


def test_an_unknown_answer_to_wrong_gradients_is_refused() -> None:
    with pytest.raises(UsageError, match="non_finite must be one of keep, evict, not 'drop'"):
        Options(
            global_batch=None,
            accumulate=1,
            stateful=(),
            reduction="mean",
            weight=None,
            shares=None,
            allocation=None,
            max_share=None,
            non_finite="drop",
        )
