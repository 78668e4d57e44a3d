# SPDX-License-Identifier: Apache-2.0
"""A worker is stopped, slow, or cut from the coordinator, and comes back to a job that went on."""

from __future__ import annotations

import os
import signal
import sys
import time
from itertools import product
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from elastic_jobs import DEADLINE_S, hang, judge, kill, regroups, run_with
from live_jobs import LiveJob, assert_nothing_lost, report

from cases import quick_of
from gangline.spec.event import Decision
from gangline.spec.faults import Fault

HANG_S = 2.8
"""Longer than the coordinator's patience."""
BACK = "worker 1 joined"


@pytest.mark.parametrize(
    "place", quick_of(["forward", "exchange", "between", "end"], quick=["exchange"])
)
def test_a_worker_comes_back_when_it_wakes(tmp_path: Path, place: str) -> None:
    setup = Setup(epochs=3, wait={10: BACK})
    faults = [hang(1, 3, place, HANG_S)]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)
    reasons = [event.reason for event in outcome.of_kind(Decision)]
    assert any("worker 1 silent for more than" in reason for reason in reasons)
    without = [event for event in regroups(outcome) if event.members == [0, 2]]
    again = [event for event in regroups(outcome) if 1 in event.members]
    assert {event.worker for event in without} == {0, 2}, "the others went on without it"
    assert {event.worker for event in again} == {0, 1, 2}, "it was taken in again"
    assert 17 in outcome.steps_of(1), "it takes part in the last step"


def test_nobody_is_put_out_when_a_worker_stops_for_a_moment(tmp_path: Path) -> None:
    setup, faults = Setup(), [hang(0, 3, "exchange", 0.3)]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)
    assert regroups(outcome) == []


def test_the_others_wait_for_a_worker_that_lets_none_of_its_threads_run(tmp_path: Path) -> None:
    """It is silent for longer than the patience, but it computes."""
    setup = Setup(computes=(0, 3, HANG_S))
    outcome = run_with(tmp_path, setup, [])
    judge(outcome, setup, [])
    assert regroups(outcome) == []
    assert [result["is_main"] for result in outcome.results.values()] == [True, False, False]


def test_the_main_worker_is_the_main_worker_again_when_it_comes_back(tmp_path: Path) -> None:
    setup = Setup(epochs=3, wait={10: "worker 0 joined"}, think_s=0.03)
    faults = [hang(0, 3, "forward", HANG_S)]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)
    assert [result["is_main"] for result in outcome.results.values()] == [True, False, False]


@pytest.mark.parametrize(
    ("then", "until"),
    quick_of(
        [(kill(1, 3, "regroup"), "kill 1"), (kill(1, 5, "data"), BACK)],
        quick=[(kill(1, 5, "data"), BACK)],
    ),
)
def test_the_others_go_on_when_a_worker_is_killed_on_coming_back(
    tmp_path: Path, then: Fault, until: str
) -> None:
    setup = Setup(wait={8: until})
    faults = [hang(1, 3, "forward", HANG_S), then]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)
    assert set(outcome.results) == {0, 2}


def test_the_rest_goes_on_when_one_is_killed_while_another_is_taken_in(tmp_path: Path) -> None:
    """The members switch to the view with the one that is back, and lose another in doing so."""
    setup = Setup(epochs=3, wait={8: BACK})
    faults = [hang(1, 3, "forward", HANG_S), kill(0, 7, "regroup")]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)
    assert set(outcome.results) == {1, 2}


def test_a_worker_that_wakes_as_the_job_ends_copies_the_final_state(tmp_path: Path) -> None:
    """It is put out in the last step, and the others are done before it is back."""
    setup, faults = Setup(epochs=1), [hang(1, 5, "forward", HANG_S)]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)
    without = [event for event in regroups(outcome) if event.members == [0, 2]]
    assert {event.worker for event in without} == {0, 2}, "they made the last step without it"


def test_a_worker_that_wakes_after_the_end_does_not_pass_for_one_that_was_there(
    tmp_path: Path,
) -> None:
    setup = Setup(wait={6: "worker 1 is stopped"})
    with LiveJob(tmp_path, setup, workers=3) as job:
        job.await_step(5)
        os.kill(job.processes[1].pid, signal.SIGSTOP)
        job.say("worker 1 is stopped")
        for worker in (0, 2):
            job.processes[worker].join(DEADLINE_S)
        os.kill(job.processes[1].pid, signal.SIGCONT)
        outcome = job.finish()
    assert outcome.exit_codes == [0, 1, 0], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 2])
    assert (
        "LeftBehindError: the coordinator refused this worker: the job has ended without"
        in (outcome.outputs[1])
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "acts"),
    [
        (2, "-1 3 -0 0.3 +1 3 +0"),
        (2, "-0 -1 3 +0 3 +1"),
        (3, "-1 3 -0 -2 0.3 +1 4 +0 1 +2"),
        (3, "-1 -2 3 -0 0.3 +1 3 +2 6 +0"),
        (3, "-0 -1 -2 3 +2 3 +1 3 +0"),
    ],
)
def test_workers_that_hang_at_overlapping_times_end_alike(
    tmp_path: Path, workers: int, acts: str
) -> None:
    """`-1` stops worker 1, `+1` lets it go on, and a number is a pause in seconds."""
    setup = Setup(epochs=30, think_s=0.06)
    with LiveJob(tmp_path, setup, workers=workers) as job:
        job.await_reported(5)
        for act in acts.split():
            if act[0] in "+-":
                how = signal.SIGSTOP if act[0] == "-" else signal.SIGCONT
                os.kill(job.processes[int(act[1:])].pid, how)
            else:
                time.sleep(float(act))
        outcome = job.finish()
    assert outcome.exit_codes == [0] * workers, report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[*range(workers)])


@pytest.mark.slow
def test_the_last_of_two_to_wake_says_that_it_was_left_behind(tmp_path: Path) -> None:
    setup = Setup(epochs=14, think_s=0.06)
    with LiveJob(tmp_path, setup, workers=2) as job:
        job.await_reported(5)
        os.kill(job.processes[1].pid, signal.SIGSTOP)
        job.await_decision("worker 1 silent for more than")
        job.await_reported(8)
        os.kill(job.processes[0].pid, signal.SIGSTOP)
        os.kill(job.processes[1].pid, signal.SIGCONT)
        job.processes[1].join(DEADLINE_S)
        os.kill(job.processes[0].pid, signal.SIGCONT)
        outcome = job.finish()
    assert outcome.exit_codes == [1, 0], report(outcome)
    assert "LeftBehindError: the coordinator refused this worker" in outcome.outputs[0]
    assert_nothing_lost(outcome, setup, finishers=[1])


def test_nobody_is_put_out_when_a_worker_loses_the_coordinator(tmp_path: Path) -> None:
    """The exchange goes on, and training does not wait for the coordinator."""
    setup = Setup(wait={5: "cut 1"})
    faults = [Fault(worker=1, kind="cut", step=2, for_s=0.4)]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)
    assert regroups(outcome) == []


def test_the_others_go_on_when_one_is_killed_and_another_has_lost_the_coordinator(
    tmp_path: Path,
) -> None:
    """Nobody can tell it from a dead one; but it comes back, and takes part again."""
    setup = Setup(wait={4: "cut 1", 8: BACK})
    faults = [Fault(worker=1, kind="cut", step=2, for_s=1.0), kill(2, 5, "exchange")]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)


def test_the_others_wait_for_a_worker_that_is_slow(tmp_path: Path) -> None:
    setup, faults = Setup(), [Fault(worker=1, kind="slow", step=4, to=0.02, for_steps=3)]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)
    assert regroups(outcome) == []


@pytest.mark.slow
def test_a_worker_that_comes_back_epochs_later_is_told_what_the_others_were(tmp_path: Path) -> None:
    """It would leave its loop, if it were alone at the ends of the epochs that it has missed."""
    setup = Setup(loop="counting", epochs=16, think_s=0.05, call="sum")
    faults = [hang(1, 3, "forward", 4.0)]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)
    first, second, third = (result["found_after"] for result in outcome.results.values())
    assert first == second == third
    assert set(first.values()) == {2, 3}


@pytest.mark.slow
def test_a_worker_that_leaves_its_loop_where_the_others_went_on_ends_with_an_error(
    tmp_path: Path,
) -> None:
    """What the workers gathered is too large to be kept for long."""
    setup = Setup(loop="counting", epochs=16, think_s=0.05, call="gather")
    outcome = run_with(tmp_path, setup, [hang(1, 3, "forward", 4.0)])
    assert outcome.exit_codes == [0, 1, 0], report(outcome)
    assert "LeftBehindError: this worker came, or came back, when" in outcome.outputs[1]
    assert_nothing_lost(outcome, setup, finishers=[0, 2])


AFTER_EPOCH = 5
"""The last step of the first epoch."""


@pytest.mark.parametrize(
    ("step", "place", "worker"),
    quick_of(
        [
            (7, "data", 1),
            (7, "forward", 0),
            (8, "backward", 1),
            (9, "exchange", 0),
            (8, "between", 0),
        ],
        quick=[(8, "backward", 1)],
    ),
)
def test_a_worker_whose_loop_fetches_ahead_comes_back_epochs_later(
    tmp_path: Path, step: int, place: str, worker: int
) -> None:
    """It still has to compute a batch of the epoch that it hung in."""
    setup = Setup(loop="fetches_between", epochs=14, think_s=0.06)
    faults = [hang(worker, step, place, for_s=4.0)]
    judge(run_with(tmp_path, setup, faults), setup, faults)


def test_a_worker_that_comes_back_saves_nothing_of_an_epoch_that_the_others_have_ended(
    tmp_path: Path,
) -> None:
    setup = Setup(loop="saves_best", epochs=14, think_s=0.06, validate=True, folder=str(tmp_path))
    faults = [hang(0, 8, "forward", for_s=4.0)]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)
    best = min(outcome.results[1]["means"])
    assert torch.load(tmp_path / "best.pt")["value"] == best
    assert "worker 0 was out from step" in outcome.outputs[0]


@pytest.mark.parametrize(
    ("call", "step"),
    quick_of(product([0, 1], [3, AFTER_EPOCH]), quick=[(1, 3)]),
    ids=[f"{call}-{place}" for call in (0, 1) for place in ("in a step", "at the end of an epoch")],
)
def test_a_worker_comes_back_in_the_middle_of_calls_that_were_made_without_it(
    tmp_path: Path, step: int, call: int
) -> None:
    """The calls that it still has to make were made long ago: it makes none of them with the others."""
    place = call + 2 * (step == AFTER_EPOCH)
    setup = Setup(
        loop="averaging",
        epochs=4,
        hangs_in=(1, step, place, HANG_S),
        wait={10: BACK},
        think_s=0.03,  # or a busy machine makes whole epochs while the new view is on its way
    )
    outcome = run_with(tmp_path, setup, [])
    judge(outcome, setup, [hang(1, step, "forward", HANG_S)])
    assert 20 in outcome.steps_of(1), "it takes part in the last epoch"
    first, second, third = (result["found_after"] for result in outcome.results.values())
    assert first == third
    assert set(first) == {0, 1, 2, 3}
    assert {0, 2, 3} <= set(second), "at most it has missed an epoch"
    assert all(first[epoch] == found for epoch, found in second.items())
