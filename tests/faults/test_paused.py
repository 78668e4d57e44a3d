# SPDX-License-Identifier: Apache-2.0
"""A job that an operator has stand still: faults hurt it as they would hurt it while it trains."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from live_jobs import LiveJob, assert_nothing_lost, report, until

from cases import quick_of
from gangline.files.tokens import OPERATOR_TOKEN
from gangline.launch.joining.contact import RunContact
from gangline.protocol.status import Status
from gangline.spec.errors import LaunchError, UsageError
from gangline.spec.event import StepDone

SETUP = Setup(samples=240, batch=12, epochs=2, think_s=0.02)


def order(job: LiveJob, name: str, **asked: Any) -> None:
    contact = RunContact(job.folder, token_file=job.folder / OPERATOR_TOKEN)
    contact.ask(f"/api/{name}", body=msgspec.json.encode(asked))


def status(job: LiveJob) -> Status | None:
    try:
        contact = RunContact(job.folder, token_file=job.folder / OPERATOR_TOKEN)
        return msgspec.json.decode(contact.ask("/api/status"), type=Status)
    except (LaunchError, UsageError):
        return None  # it is only just being started


def members(job: LiveJob) -> tuple[int, ...]:
    found = status(job)
    return () if found is None or found.view is None else found.view.members


def pause(job: LiveJob) -> int:
    """Has the job stand still; the last step that was made."""
    order(job, "pause", is_paused=True)
    stood = -1
    while stood < 0 or newest_step(job) != stood:
        stood = newest_step(job)
        time.sleep(0.7)  # the present step ends, and logs are written
    return stood


def newest_step(job: LiveJob) -> int:
    """The last step that is in the logs; -1: none is yet."""
    steps = (event.step for event in job.events() if isinstance(event, StepDone))
    return max(steps, default=-1)


@pytest.mark.parametrize("killed", quick_of([[], [2], [0, 2]], quick=[[2]]))
def test_workers_and_the_coordinator_die_while_a_job_is_paused(
    tmp_path: Path, killed: list[int]
) -> None:
    with LiveJob(tmp_path, SETUP, workers=3) as job:
        job.await_reported(5)
        stood = pause(job)
        for worker in killed:
            job.processes[worker].kill()
        left = tuple(worker for worker in range(3) if worker not in killed)
        until(lambda: members(job) == left, "a view of those that are left")
        job.kill_coordinator()
        job.restart_coordinator()
        until(lambda: (found := status(job)) and found.is_paused, "the coordinator's memory")
        time.sleep(0.5)
        assert newest_step(job) == stood, "it stands still, whoever dies"
        order(job, "pause", is_paused=False)
        outcome = job.finish()
    assert all(outcome.exit_codes[worker] == 0 for worker in left), report(outcome)
    assert_nothing_lost(outcome, SETUP, finishers=list(left))


@pytest.mark.slow
def test_a_worker_is_kept_out_and_taken_back(tmp_path: Path) -> None:
    setup = Setup(samples=800, batch=12, epochs=1, think_s=0.02)
    with LiveJob(tmp_path, setup, workers=3) as job:
        job.await_reported(5)
        order(job, "exclude", worker=0, is_out=True)
        until(lambda: members(job) == (1, 2), "a view without it")
        order(job, "exclude", worker=0, is_out=False)
        until(lambda: len(members(job)) == 3, "a view with it")
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 1, 2])


@pytest.mark.slow
def test_a_job_ends_politely_with_a_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    setup = Setup(samples=4000, batch=12, epochs=4, think_s=0.02, checkpoint=str(folder))
    with LiveJob(tmp_path, setup, workers=3) as job:
        job.await_reported(5)
        pause(job)
        order(job, "end")
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    last = max(event.step for event in outcome.events if isinstance(event, StepDone))
    assert (folder / f"step-{last + 1:09}").is_dir(), sorted(folder.iterdir())
