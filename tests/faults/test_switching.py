# SPDX-License-Identifier: Apache-2.0
"""A running job is switched between all in step and groups at their own pace, there and back."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from elastic_bodies import Setup
from elastic_jobs import assert_replays
from live_jobs import LiveJob, report
from test_teams import PAIRS

from cases import quick_of
from gangline.cli.main import run_command
from gangline.spec.event import Regrouped
from gangline.spec.sync import IN_STEP, parse_sync

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_jobs import Outcome

AGAIN = "the coordinator was started again"
SETUP = Setup(samples=200, batch=12, epochs=4, allocation="balanced")
SWITCHES = [("full", "percentage(0.5)"), ("none", "full")]


def asked(mode: str) -> str:
    return f"when all have met, as other teams, by {mode}"


def switch(job: LiveJob, mode: str) -> None:
    """Has the job switched; its workers wait at some step until that was asked for."""
    assert run_command(["set", str(job.folder), "sync", mode]) == 0
    job.await_decision(asked(mode))


def assert_sound(outcome: Outcome, setup: Setup, *, finishers: tuple[int, ...]) -> None:
    first = outcome.results[finishers[0]]["state"]
    for number in finishers:
        for name, value in outcome.results[number]["state"].items():
            assert torch.equal(value, first[name]), f"process {number} differs in {name}"
    assert_replays(outcome.folder)
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)


def teams_of(outcome: Outcome) -> list[tuple[int, ...]]:
    """Who was in which team, in the order of the teams' numbers."""
    found = {one.team: tuple(one.members) for one in outcome.of_kind(Regrouped)}
    return [found[team] for team in sorted(found)]


@pytest.mark.parametrize("num_workers", quick_of([0, 2], quick=[2]), ids=["plain", "fetched ahead"])
def test_in_step_then_apart_then_in_step_again(tmp_path: Path, num_workers: int) -> None:
    modes = ("percentage(0.5)", "full", "local(3)")
    waits = {}
    for first, mode in zip((5, 24, 44), modes, strict=True):
        # Numbers of steps are left out when teams meet: one of these will do.
        waits |= dict.fromkeys(range(first, first + 8), asked(mode))
    setup = replace(SETUP, wait=waits, num_workers=num_workers)
    with LiveJob(tmp_path, setup, workers=4, structure=PAIRS) as job:
        for step, mode in zip((2, 20, 40), modes, strict=True):
            job.await_reported(step)
            switch(job, mode)
        outcome = job.finish()
    assert outcome.exit_codes == [0] * 4, report(outcome)
    assert_sound(outcome, setup, finishers=(0, 1, 2, 3))
    assert teams_of(outcome) == [(0, 1), (2, 3), (0, 1, 2, 3), (0, 1), (2, 3)]


def test_apart_then_in_step(tmp_path: Path) -> None:
    setup = replace(SETUP, wait={8: asked("full")})
    with LiveJob(tmp_path, setup, workers=3, sync=parse_sync("none")) as job:
        job.await_reported(4)
        switch(job, "full")
        outcome = job.finish()
    assert outcome.exit_codes == [0] * 3, report(outcome)
    assert_sound(outcome, setup, finishers=(0, 1, 2))
    assert teams_of(outcome)[-1] == (0, 1, 2)


@pytest.mark.parametrize(
    ("before", "after", "victim"),
    quick_of(
        [(*modes, victim) for modes in SWITCHES for victim in (0, 3)], quick=[("none", "full", 0)]
    ),
)
def test_a_worker_dies_while_the_job_is_switched(
    tmp_path: Path, victim: int, before: str, after: str
) -> None:
    setup = replace(SETUP, wait={6: asked(after)})
    job = LiveJob(tmp_path, setup, workers=4, structure=PAIRS, sync=parse_sync(before))
    with job:
        job.await_reported(3)
        switch(job, after)
        os.kill(job.processes[victim].pid, signal.SIGKILL)
        outcome = job.finish()
    finishers = tuple(worker for worker in range(4) if worker != victim)
    codes = [0] * 4
    codes[victim] = -signal.SIGKILL
    assert outcome.exit_codes == codes, report(outcome)
    assert_sound(outcome, setup, finishers=finishers)


@pytest.mark.parametrize(
    ("before", "after"), quick_of(SWITCHES, quick=[("full", "percentage(0.5)")])
)
def test_the_coordinator_is_killed_while_the_job_is_switched(
    tmp_path: Path, before: str, after: str
) -> None:
    setup = replace(SETUP, wait={6: asked(after), 12: AGAIN}, think_s=0.02)
    sync = IN_STEP if before == "full" else parse_sync(before)
    with LiveJob(tmp_path, setup, workers=4, structure=PAIRS, sync=sync) as job:
        job.await_reported(3)
        switch(job, after)
        job.kill_coordinator()
        job.restart_coordinator()
        outcome = job.finish()
    assert outcome.exit_codes == [0] * 4, report(outcome)
    assert_sound(outcome, setup, finishers=(0, 1, 2, 3))
    expected = {"full": [(0, 1), (2, 3)], "none": [(0, 1), (2, 3), (0, 1, 2, 3)]}
    assert teams_of(outcome) == expected[before]


@pytest.mark.slow
def test_a_newcomer_enters_a_job_that_was_switched(tmp_path: Path) -> None:
    mode = "percentage(0.5)"
    # Long after the teams were founded, and at whichever of these steps a team comes to first: before
    # its first step a team takes nobody in, and numbers of steps are left out when teams meet.
    joined = dict.fromkeys(range(30, 40), "worker 2 joined")
    setup = replace(SETUP, wait={6: asked(mode), **joined})
    with LiveJob(tmp_path, setup, workers=2, is_joined=True) as job:
        job.await_reported(3)
        switch(job, mode)
        job.join(replace(setup, wait={}))
        outcome = job.finish()
    assert outcome.exit_codes == [0] * 3, report(outcome)
    assert_sound(outcome, setup, finishers=(0, 1, 2))


@pytest.mark.parametrize(
    ("mode", "order"),
    quick_of(
        [
            ("none", "stopped first"),
            ("none", "switched first"),
            ("flexible", "stopped first"),
            ("local(4)", "stopped first"),
        ],
        quick=[("local(4)", "stopped first")],
    ),
)
def test_a_worker_hangs_while_the_job_is_switched(tmp_path: Path, mode: str, order: str) -> None:
    """It is put out and comes back, to a job whose workers have parted meanwhile."""
    # It is stopped where all hold. Both teams go on to one of the later steps, and wait for it there.
    back = dict.fromkeys(range(14, 22), "worker 1 joined")
    setup = replace(SETUP, epochs=2, wait={6: asked(mode), 8: "file stopped", **back})
    with LiveJob(tmp_path, setup, workers=3) as job:
        job.await_reported(3)
        victim = job.processes[1].pid
        if order == "switched first":
            switch(job, mode)
        os.kill(victim, signal.SIGSTOP)
        (tmp_path / "stopped").touch()
        try:
            if order == "stopped first":
                switch(job, mode)
            job.await_decision("worker 1 silent for more than")
        finally:
            os.kill(victim, signal.SIGCONT)
        outcome = job.finish()
    assert outcome.exit_codes == [0] * 3, report(outcome)
    assert_sound(outcome, setup, finishers=(0, 1, 2))
