# SPDX-License-Identifier: Apache-2.0
"""Workers that pull parts of a global batch are killed, hang, leave and join; so is the coordinator.

Nothing is lost, nothing is used twice, and the result is that of one process.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from elastic_jobs import hang, judge, kill, regroups, run_with
from live_jobs import LiveJob, assert_nothing_lost, report

from cases import quick_of
from gangline.spec.event import Decision, StepDone
from gangline.spec.faults import Fault

PULLED = "self-scheduled(SS)"
"""One sample at a time: a worker has several parts of every step, whatever the machine does."""
PLACES = ["data", "forward", "backward", "part", "exchange", "update", "between", "end"]


def parts_of(outcome, step: int) -> dict[int, list[list[int]]]:
    """Which parts of a step, as it was committed, each worker computed."""
    told = [event for event in outcome.of_kind(StepDone) if event.step == step]
    view = max(event.view for event in told)
    return {event.worker: event.parts for event in told if event.view == view}


@pytest.mark.parametrize("place", quick_of(PLACES, quick=["part"]))
def test_the_others_compute_the_parts_of_a_worker_that_is_killed(
    tmp_path: Path, place: str
) -> None:
    setup, faults = Setup(allocation=PULLED, think_s=0.003), [kill(1, 3, place)]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)
    parts = [tuple(part) for parts in parts_of(outcome, 4).values() for part in parts]
    assert len(parts) > 2, "there is more than one part for each worker"
    assert {event.worker for event in regroups(outcome)} == {0, 2}


@pytest.mark.parametrize(
    ("allocation", "victim"),
    quick_of(
        list(product(["self-scheduled", "self-scheduled(GSS)", "balanced+stolen"], [0, 2])),
        quick=[("balanced+stolen", 0)],
    ),
)
def test_whoever_is_lost_the_result_is_that_of_one_process(
    tmp_path: Path, allocation: str, victim: int
) -> None:
    setup = Setup(allocation=allocation, samples=200, batch=24, slow_worker=1, validate=True)
    faults = [kill(victim, 4, "part")]
    judge(run_with(tmp_path, setup, faults), setup, faults)


@pytest.mark.slow
def test_one_goes_on_alone_when_all_others_are_killed(tmp_path: Path) -> None:
    setup = Setup(allocation=PULLED)
    faults = [kill(0, 4, "exchange"), kill(2, 4, "part"), kill(3, 4, "backward")]
    outcome = run_with(tmp_path, setup, faults, workers=4)
    judge(outcome, setup, faults)
    assert set(outcome.results) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("place", ["part", "forward"])
def test_a_worker_that_hangs_in_a_part_is_done_without_and_comes_back(
    tmp_path: Path, place: str
) -> None:
    setup = Setup(allocation=PULLED, epochs=3, wait={10: "worker 1 joined"}, think_s=0.03)
    faults = [hang(1, 3, place, 2.8)]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)
    without = [event for event in regroups(outcome) if event.members == [0, 2]]
    assert {event.worker for event in without} == {0, 2}
    assert 17 in outcome.steps_of(1), "it takes part in the last step"


@pytest.mark.slow
def test_a_worker_that_is_cut_from_the_coordinator_is_waited_for(tmp_path: Path) -> None:
    setup = Setup(allocation=PULLED)
    faults = [Fault(worker=1, kind="cut", step=3, where="part", for_s=0.5)]
    judge(run_with(tmp_path, setup, faults), setup, faults)


@pytest.mark.slow
def test_what_processes_of_a_loader_have_fetched_ahead_is_computed_by_others(
    tmp_path: Path,
) -> None:
    setup = Setup(allocation=PULLED, num_workers=2)
    faults = [kill(1, 3, "part")]
    judge(run_with(tmp_path, setup, faults), setup, faults)


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["stateful", "fetches_ahead", "unfreezing", "normalised"])
def test_loops_of_other_kinds_lose_a_worker(tmp_path: Path, loop: str) -> None:
    setup, faults = Setup(loop=loop, allocation=PULLED), [kill(1, 3, "part")]
    # Each part moves running statistics: they are those of all members, not those of one process.
    is_exact = loop in ("fetches_ahead", "unfreezing")
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults, is_exact=is_exact)
    for name, value in next(iter(outcome.results.values()))["state"].items():
        if name.endswith(("count", "num_batches_tracked")):
            assert value == setup.steps, "a step counts as one pass"


def test_the_step_is_done_again_when_the_coordinator_is_started_again(tmp_path: Path) -> None:
    """It does not know what was handed out, so nothing more is; the members make another group."""
    setup = Setup(allocation=PULLED, epochs=8, think_s=0.002)
    with LiveJob(tmp_path, setup) as job:
        job.await_step(5)
        job.kill_coordinator()
        job.restart_coordinator()
        job.await_decision("the coordinator was started again")
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 1])
    again = {(event.group, tuple(event.members)) for event in regroups(outcome)}
    assert again == {(1, (0, 1))}, "once, and nobody was taken to be lost"


@pytest.mark.slow
def test_a_newcomer_pulls_parts(tmp_path: Path) -> None:
    setup = Setup(allocation=PULLED, epochs=14, think_s=0.002, wait={60: "worker 2 joined"})
    with LiveJob(tmp_path, setup) as job:
        job.await_step(5)
        job.join()
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 1, 2])
    assert {*parts_of(outcome, setup.steps - 1)} == {0, 1, 2}
    assert not any("lost" in event.reason for event in outcome.of_kind(Decision))
