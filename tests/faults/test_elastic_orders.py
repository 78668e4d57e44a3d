# SPDX-License-Identifier: Apache-2.0
"""Shuffled epochs while workers are lost and come back: the order stays the plain script's, and one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from elastic_jobs import hang, judge, kill, regroups, run_with
from live_jobs import LiveJob, report
from test_switching import asked, assert_sound, switch
from test_teams import PAIRS

from cases import quick_of
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from gangline.spec.faults import Fault

SWITCHED = Setup(samples=200, batch=12, epochs=3, allocation="balanced")


@pytest.mark.parametrize(
    ("order", "fault"),
    quick_of(
        [
            ("shuffled", kill(1, 2, "exchange")),
            ("generator", kill(0, 2, "exchange")),
            ("generator", kill(0, 0, "call")),
            ("generator", kill(0, 6, "end")),
            ("weighted", kill(0, 2, "exchange")),
            ("weighted", kill(0, 6, "call")),
            ("weighted", kill(0, 6, "end")),
        ],
        quick=[("generator", kill(0, 0, "call"))],
    ),
)
def test_the_order_stays_when_a_worker_is_lost(tmp_path: Path, order: str, fault: Fault) -> None:
    """The first call of a job is the one by which the order is agreed on."""
    setup = Setup(order=order, epochs=3)
    judge(run_with(tmp_path, setup, [fault]), setup, [fault])


def test_a_worker_that_hangs_while_the_order_is_agreed_on_comes_back(tmp_path: Path) -> None:
    setup = Setup(
        order="shuffled",
        epochs=3,
        wait={11: "worker 1 joined"},
        hangs_in_order=(1, 1),
        think_s=0.03,  # the new view is on its way meanwhile
    )
    outcome = run_with(tmp_path, setup, [])
    judge(outcome, setup, [hang(1, 0, "call", 2.8)])
    assert 17 in outcome.steps_of(1), "it takes part in the last step"


@pytest.mark.parametrize(
    "loop", quick_of(["averaging", "baseline", "plain"], quick=["averaging", "baseline"])
)
def test_a_worker_that_is_not_yet_in_the_batch_joins_the_others_void_attempt(
    tmp_path: Path, loop: str
) -> None:
    """The others have the first batch of an epoch, and call each other in it; this one has none."""
    setup = Setup(loop=loop, samples=48, order="generator", loses_order=(0, 1))
    outcome = run_with(tmp_path, setup, [])
    judge(outcome, setup, [])
    assert regroups(outcome), "nothing broke"


@pytest.mark.parametrize("order", quick_of(["shuffled", "generator"], quick=["shuffled"]))
def test_each_sample_is_used_once_however_a_job_is_switched(tmp_path: Path, order: str) -> None:
    modes = ("percentage(0.5)", "full")
    waits = {}
    for first, mode in zip((5, 24), modes, strict=True):
        waits |= dict.fromkeys(range(first, first + 8), asked(mode))
    setup = replace(SWITCHED, order=order, wait=waits)
    with LiveJob(tmp_path, setup, workers=4, structure=PAIRS) as job:
        for step, mode in zip((2, 20), modes, strict=True):
            job.await_reported(step)
            switch(job, mode)
        outcome = job.finish()
    assert outcome.exit_codes == [0] * 4, report(outcome)
    assert_sound(outcome, setup, finishers=(0, 1, 2, 3))
    _assert_each_once(outcome, setup)


def test_each_sample_is_used_once_by_groups_at_their_own_pace(tmp_path: Path) -> None:
    setup = replace(SWITCHED, order="shuffled")
    with LiveJob(tmp_path, setup, workers=3, sync=parse_sync("none")) as job:
        outcome = job.finish()
    assert outcome.exit_codes == [0] * 3, report(outcome)
    _assert_each_once(outcome, setup)


def _assert_each_once(outcome: object, setup: Setup) -> None:
    """Looks at the samples themselves: the ledger knows only their places in the order."""
    used: dict[int, list[int]] = {epoch: [] for epoch in range(setup.epochs)}
    for result in outcome.results.values():  # type: ignore[attr-defined]
        for (epoch, _), indices in result["used"].items():
            used[epoch] += indices
    for epoch, indices in used.items():
        assert sorted(indices) == list(range(setup.samples)), f"epoch {epoch}"
