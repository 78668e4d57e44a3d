# SPDX-License-Identifier: Apache-2.0
"""Workers die, come and go in loops that carry gradients over from batch to batch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from elastic_jobs import hang, judge, kill, run_with

LOOPS = ["unzeroed", "own_windows", "unsynced_windows", "second_optimizer"]


PLACES = [("forward", 1, 4), ("exchange", 0, 4), ("between", 1, 3), ("call", 0, 5)]


@pytest.mark.parametrize(
    ("loop", "place", "victim", "step"),
    [
        pytest.param(loop, *place, marks=() if number == index else pytest.mark.slow)
        for number, loop in enumerate(LOOPS)
        for index, place in enumerate(PLACES)
    ],
)
def test_what_was_carried_over_is_kept_when_a_worker_is_killed(
    tmp_path: Path, loop: str, place: str, victim: int, step: int
) -> None:
    setup, faults = Setup(loop=loop), [kill(victim, step, place)]
    judge(run_with(tmp_path, setup, faults), setup, faults)


@pytest.mark.parametrize(("place", "victim"), [("exchange", 0), ("update", 1)])
def test_what_one_pass_left_to_the_next_is_kept_when_a_worker_is_killed(
    tmp_path: Path, place: str, victim: int
) -> None:
    setup, faults = Setup(loop="unzeroed_pair"), [kill(victim, 4, place)]
    judge(run_with(tmp_path, setup, faults), setup, faults)


@pytest.mark.parametrize(
    "loop",
    [
        pytest.param(loop, marks=() if loop == "unsynced_windows" else pytest.mark.slow)
        for loop in LOOPS
    ],
)
def test_a_worker_that_comes_back_is_given_what_was_carried_over(tmp_path: Path, loop: str) -> None:
    # It is put out while it hangs, and copies what the others have when it is back, which are in the
    # next epoch then. Then the only one is killed that might make up for what it lacks: rank 0, whose
    # sum counts.
    setup = Setup(loop=loop, samples=140, wait={22: "worker 2 joined"}, think_s=0.03)
    faults = [hang(2, 4, "exchange", 2.8), kill(0, 30, "forward")]
    judge(run_with(tmp_path, setup, faults), setup, faults)
