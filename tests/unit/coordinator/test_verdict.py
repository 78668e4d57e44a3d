# SPDX-License-Identifier: Apache-2.0
"""Whether somebody was lost, or the workers' loops differ; and who writes the same file."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gangline.coordinator.reports.verdict import GATHER_S, Verdict, judge_ends, judge_team
from gangline.coordinator.reports.writers import Writers
from gangline.coordinator.teams.sums import Sums
from gangline.protocol.messages import (
    PROTOCOL_VERSION,
    Failed,
    Goodbye,
    Hello,
    LeaseAsked,
    Reached,
    Saved,
    Told,
)
from gangline.spec.errors import MismatchError
from gangline.spec.exchange.address import WireAddress
from gangline.spec.position import Position
from gangline.worker.groups.membership import raise_stopped

MEMBERS = (0, 1, 2)


def at(step: int, *, calls: int = 0, epoch: int = 0) -> Position:
    return Position(step=step, phase=0, handed_out=step - 1, calls=calls, epoch=epoch, start=0)


def goodbye(position: Position | None) -> Goodbye:
    return Goodbye(reason="done", position=() if position is None else tuple(position))


def failed(position: Position, call: str = "backward()", *, is_mismatch: bool = False) -> Failed:
    return Failed(
        group=0,
        step=position.step,
        error="broken",
        position=tuple(position),
        call=call,
        is_mismatch=is_mismatch,
    )


@pytest.mark.parametrize("position", [at(5), at(6), at(5, calls=1)])
def test_who_fails_where_another_has_ended_has_gone_on(position: Position) -> None:
    verdict = Verdict()
    verdict.hear_goodbye(1, goodbye(at(5)))
    assert verdict.judge(MEMBERS, 0.0) is None, "the others may end there, too"
    verdict.hear_failure(0, failed(position), 0.0)
    stopped = verdict.judge(MEMBERS, 0.0)
    assert stopped is not None
    assert "worker 1 ended its script after 5 steps (epoch 0), while worker 0 is in backward()" in (
        stopped.reason
    )
    assert "gangline.any(flag)" in stopped.reason


@pytest.mark.parametrize("position", [at(4), at(5, calls=0)])
def test_who_is_behind_the_one_that_ended_has_lost_somebody(position: Position) -> None:
    verdict = Verdict()
    verdict.hear_goodbye(1, goodbye(at(5, calls=1)))
    verdict.hear_failure(0, failed(position), 0.0)
    assert verdict.judge(MEMBERS, 10.0) is None


def test_who_ended_without_a_position_was_lost_or_asked_to_go() -> None:
    verdict = Verdict()
    verdict.hear_goodbye(1, goodbye(None))
    verdict.hear_failure(0, failed(at(5)), 0.0)
    assert verdict.judge(MEMBERS, 10.0) is None
    assert verdict.judge_waiting([1], [0]) is None


def test_who_waits_for_one_that_has_ended_has_gone_on() -> None:
    verdict = Verdict()
    verdict.hear_goodbye(1, goodbye(at(5)))
    assert verdict.judge_waiting([1], []) is None, "the others may end, too"
    assert verdict.judge_waiting([2], [0]) is None, "somebody else is lost"
    stopped = verdict.judge_waiting([1], [0, 2])
    assert stopped is not None
    assert stopped.places.endswith("while workers 0, 2 are still there, and waiting")


def test_calls_that_differ_are_gathered_for_a_moment() -> None:
    verdict = Verdict()
    verdict.hear_failure(0, failed(at(5), "gangline.mean(a number)", is_mismatch=True), 0.0)
    assert verdict.judge(MEMBERS, 0.1) is None
    verdict.hear_failure(2, failed(at(5)), 0.1)
    stopped = verdict.judge(MEMBERS, GATHER_S + 0.01)
    assert stopped is not None
    assert stopped.places == (
        "worker 0 is in gangline.mean(a number) after 5 steps (epoch 0), worker 2 is in backward() "
        "after 5 steps (epoch 0)"
    )


def test_failures_of_a_group_that_was_mended_count_no_more() -> None:
    verdict = Verdict()
    verdict.hear_failure(0, failed(at(5), is_mismatch=True), 0.0)
    verdict.begin_group()
    verdict.hear_goodbye(1, goodbye(at(5)))
    assert verdict.judge(MEMBERS, 10.0) is None


def test_variables_of_a_loop_are_suspected_where_somebody_came_late() -> None:
    verdict = Verdict()
    verdict.late = [2]
    verdict.hear_goodbye(1, goodbye(at(5)))
    verdict.hear_failure(2, failed(at(5)), 0.0)
    stopped = verdict.judge(MEMBERS, 0.0)
    assert stopped is not None
    assert stopped.hint.startswith("Worker 2 came back or joined while the others trained")
    assert "gangline.prepare(stateful=[...])" in stopped.hint
    assert stopped.reason.endswith(stopped.hint)
    with pytest.raises(MismatchError, match=r"two calls\. Worker 2 came back"):
        raise_stopped(MismatchError("two calls"), msgspec.structs.replace(stopped, places=""))


# --- groups that train at their own pace --------------------------------------------------------------


def told(name: str, *, epoch: int = 1, call: int = 0) -> Told:
    return Told(epoch=epoch, call=call, values=(), name=name)


@pytest.mark.parametrize(
    ("message", "goes_on"),
    [
        (LeaseAsked(epoch=0, number=3, length=9), False),
        (LeaseAsked(epoch=1, number=0, length=9), True),
        (Reached(epoch=1, offset=3, step=1, is_end=True), True),
        (told("gangline.sum()"), True),
    ],
)
def test_a_group_that_goes_on_after_the_end_of_another_is_named(
    message: Any, goes_on: bool
) -> None:
    stopped = judge_team(2, 1, message, ended={0: at(5, epoch=1)}, sums=Sums())
    assert (stopped is not None) == goes_on
    if stopped is not None:
        assert "worker 0 ended its script after 5 steps (epoch 1), while worker 2" in stopped.reason


def test_a_sum_that_was_complete_before_the_end_of_another_group_may_be_asked_for_again() -> None:
    sums = Sums()
    for team in (0, 1):
        sums.add(team, team, told("gangline.sum()"))
    sums.complete([0, 1])
    assert judge_team(1, 1, told("gangline.sum()"), ended={0: at(5, epoch=1)}, sums=sums) is None


def test_groups_in_different_calls_are_named() -> None:
    sums = Sums()
    sums.add(0, 0, told("gangline.evaluate(9 samples)"))
    other = judge_team(3, 1, told("gangline.sum()"), ended={}, sums=sums)
    assert other is not None
    assert "worker 0 is in gangline.evaluate(9 samples) before epoch 1, worker 3 is in" in (
        other.reason
    )
    training = judge_team(3, 1, LeaseAsked(epoch=1, number=0, length=9), ended={}, sums=sums)
    assert training is not None
    assert "worker 3 has begun epoch 1" in training.reason
    before = judge_team(3, 1, LeaseAsked(epoch=0, number=0, length=9), ended={}, sums=sums)
    assert before is None
    assert judge_team(3, 1, told("gangline.evaluate(9 samples)"), ended={}, sums=sums) is None


# --- who writes which file ----------------------------------------------------------------------------


def writers(*hosts: str) -> Writers:
    return Writers(
        {
            worker: Hello(
                protocol=PROTOCOL_VERSION,
                run="test",
                worker=worker,
                host=host,
                pid=1,
                address=WireAddress(host="127.0.0.1", port=1, host_id=host),
            )
            for worker, host in enumerate(hosts)
        }
    )


def saved(path: str, *, inode: int = 7, is_main: bool = False) -> Saved:
    return Saved(path=path, inode=inode, is_main=is_main)


def test_workers_of_one_host_that_write_one_file_are_told() -> None:
    found = writers("here", "here")
    ((worker, answer),) = found.note(0, saved("/a", is_main=True))
    assert (worker, answer.workers) == (0, ())
    assert [(w, a.workers) for w, a in found.note(1, saved("/a", inode=8))] == [
        (0, (0, 1)),
        (1, (0, 1)),
    ]


def test_files_of_one_name_on_two_hosts_are_one_if_they_have_one_inode() -> None:
    found = writers("here", "there", "elsewhere")
    found.note(0, saved("/a"))
    assert [a.workers for _, a in found.note(1, saved("/a", inode=8))] == [()]
    assert [a.workers for _, a in found.note(2, saved("/a", inode=7))] == [(0, 2)] * 2


def test_main_workers_that_follow_each_other_may_write_one_file() -> None:
    found = writers("here", "here")
    found.note(0, saved("/a", is_main=True))
    assert [a.workers for _, a in found.note(1, saved("/a", is_main=True))] == [()]
    assert [a.workers for _, a in found.note(1, saved("/b"))] == [()]


def test_a_call_that_comes_after_another_group_has_begun_the_epoch_is_named() -> None:
    sums, call = Sums(), told("gangline.evaluate(9 samples)")
    sums.expect([0, 1], 1)
    assert judge_team(3, 1, LeaseAsked(epoch=1, number=0, length=9), ended={}, sums=sums) is None
    stopped = judge_team(0, 0, call, ended={}, sums=sums)
    assert stopped is not None
    places = (
        "worker 0 is in gangline.evaluate(9 samples) before epoch 1, worker 3 has begun epoch 1"
    )
    assert stopped.places == places
    assert judge_team(4, 1, call, ended={}, sums=sums) is None, "one that is behind its own group"
    assert judge_team(5, 2, call, ended={}, sums=sums) is None, "one that came later"


def test_an_end_that_is_heard_after_the_call_of_another_group_is_named() -> None:
    sums = Sums()
    sums.add(0, 0, told("gangline.sum()", epoch=2))
    assert judge_ends({3: at(5, epoch=3)}, sums) is None, "its end came after that call"
    stopped = judge_ends({3: at(5, epoch=2)}, sums)
    assert stopped is not None
    assert (
        "worker 3 ended its script after 5 steps (epoch 2), while worker 0 is in" in stopped.places
    )
