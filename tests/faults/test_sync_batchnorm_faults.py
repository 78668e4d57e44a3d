# SPDX-License-Identifier: Apache-2.0
"""A worker is lost while batch statistics are exchanged: the batch is done again, and nobody hangs."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from elastic_jobs import judge, kill, regroups, run_with

from cases import quick_of

SYNCED = "synchronised"


@pytest.mark.parametrize(
    ("place", "victim"),
    quick_of(product(["forward", "backward"], [0, 1]), quick=[("backward", 0)]),
)
def test_the_others_go_on_when_a_worker_is_killed_between_two_layers(
    tmp_path: Path, place: str, victim: int
) -> None:
    """The others wait for its part of the second layer's (backward: of the first layer's) sums."""
    setup = Setup(loop=SYNCED, trap=(victim, 3, place))
    outcome = run_with(tmp_path, setup, [], transport="wire-tcp" if victim else None)
    judge(outcome, setup, [])
    assert {event.worker for event in regroups(outcome)} == {0, 1, 2} - {victim}


@pytest.mark.parametrize(
    "place", quick_of(["forward", "exchange", "update", "between"], quick=["forward"])
)
def test_the_others_go_on_when_a_worker_is_killed_in_a_step(tmp_path: Path, place: str) -> None:
    setup, faults = Setup(loop=SYNCED), [kill(1, 4, place)]
    judge(run_with(tmp_path, setup, faults), setup, faults)


def test_one_sample_is_no_error_in_an_attempt_that_counts_nothing(tmp_path: Path) -> None:
    """All samples of the batch are enough to normalise by; one worker's own is not."""
    setup, faults = Setup(loop=SYNCED, batch=3, samples=18), [kill(1, 4, "forward")]
    judge(run_with(tmp_path, setup, faults), setup, faults)


def test_the_others_go_on_when_a_worker_is_killed_in_a_mean_amid_the_step(tmp_path: Path) -> None:
    setup, faults = Setup(loop=SYNCED, validate=True), [kill(1, 4, "call")]
    judge(run_with(tmp_path, setup, faults), setup, faults)


@pytest.mark.parametrize("place", quick_of(["forward", "backward"], quick=["forward"]))
def test_the_window_is_accumulated_anew_when_a_worker_is_killed_in_it(
    tmp_path: Path, place: str
) -> None:
    """A mean amid the window brings the others together again, before the window is over.

    Shares of 2 or 3 are not cut, so that each window is one process's batch, and then ghosts.
    """
    setup = Setup(loop=SYNCED, accumulate=2, validate=True, trap=(1, 2, place))
    judge(run_with(tmp_path, setup, [], workers=4), setup, [])


@pytest.mark.parametrize("place", quick_of(["forward", "backward"], quick=["backward"]))
def test_one_goes_on_alone_when_its_only_peer_is_killed(tmp_path: Path, place: str) -> None:
    setup = Setup(loop=SYNCED, trap=(0, 5, place))
    judge(run_with(tmp_path, setup, [], workers=2), setup, [])
