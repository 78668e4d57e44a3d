# SPDX-License-Identifier: Apache-2.0
"""Workers die in loops that update by hand, carry states, or draw batches of their own sizes."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from elastic_jobs import hang, judge, kill, run_with
from live_jobs import LiveJob, assert_nothing_lost, report

from cases import quick_of
from gangline.spec.event import ViewAdopted


@pytest.mark.parametrize(
    ("place", "victim"),
    quick_of(
        [("forward", 1), ("exchange", 0), ("call", 1), ("between", 0)],
        quick=[("exchange", 0), ("call", 1)],
    ),
)
def test_a_hand_written_update_is_made_once_when_a_worker_is_killed(
    tmp_path: Path, place: str, victim: int
) -> None:
    setup, faults = Setup(loop="by_hand"), [kill(victim, 4, place)]
    judge(run_with(tmp_path, setup, faults), setup, faults)


@pytest.mark.parametrize("place", quick_of(["exchange", "update", "call"], quick=["exchange"]))
def test_carried_states_are_those_of_one_process_when_a_worker_is_killed(
    tmp_path: Path, place: str
) -> None:
    setup, faults = Setup(loop="carried", samples=48), [kill(0, 4, place)]
    judge(run_with(tmp_path, setup, faults), setup, faults)


def test_carried_states_follow_their_samples_when_shares_change(tmp_path: Path) -> None:
    setup = Setup(loop="carried", allocation="balanced", samples=240, batch=12, slow_worker=2)
    outcome = run_with(tmp_path, setup, [])
    judge(outcome, setup, [])
    shares = {tuple(event.shares) for event in outcome.of_kind(ViewAdopted)}
    assert len(shares) > 1, "nothing has moved"


@pytest.mark.parametrize("place", quick_of(["exchange", "between"], quick=["exchange"]))
def test_batches_of_any_size_are_trained_once_when_a_worker_is_killed(
    tmp_path: Path, place: str
) -> None:
    setup, faults = Setup(loop="bucketed"), [kill(0, 4, place)]
    judge(run_with(tmp_path, setup, faults), setup, faults)


@pytest.mark.parametrize("place", quick_of(["call", "exchange"], quick=["call"]))
def test_a_mean_before_the_backward_pass_is_that_of_the_batch_when_a_worker_is_killed(
    tmp_path: Path, place: str
) -> None:
    setup, faults = Setup(loop="baseline", samples=48), [kill(1, 4, place)]
    judge(run_with(tmp_path, setup, faults), setup, faults)


@pytest.mark.slow
def test_a_worker_that_comes_back_trains_a_layer_that_was_unfrozen_meanwhile(
    tmp_path: Path,
) -> None:
    setup = Setup(loop="unfreezing", epochs=10, think_s=0.06)
    faults = [hang(1, 3, "forward", for_s=4.0)]
    judge(run_with(tmp_path, setup, faults), setup, faults)


@pytest.mark.slow
def test_a_newcomer_trains_a_layer_that_was_unfrozen_before(tmp_path: Path) -> None:
    setup = Setup(loop="unfreezing", epochs=5, wait={20: "worker 2 joined"}, think_s=0.03)
    with LiveJob(tmp_path, setup, workers=2) as job:
        job.await_reported(18)
        job.join()
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 1, 2])


def test_a_hidden_state_of_the_size_of_a_batch_is_named_when_a_worker_is_killed(
    tmp_path: Path,
) -> None:
    setup = Setup(loop="carrying", samples=48)
    outcome = run_with(tmp_path, setup, [kill(1, 3, "exchange")])
    assert outcome.exit_codes == [1, -signal.SIGKILL, 1], report(outcome)
    for worker in (0, 2):
        assert "RuntimeError: Input batch size" in outcome.outputs[worker]
        assert "keep it in a gangline.SampleState" in outcome.outputs[worker]
