# SPDX-License-Identifier: Apache-2.0
"""Machines send their event logs to where the job was started, while one or the other is killed."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from command_jobs import EPOCHS, CommandJob

from gangline.eventlog import events_dir, read_run
from gangline.files.announcement import read_announcement
from gangline.observe import summarize
from gangline.observe.ledger import read_ledger
from gangline.spec.event import RunEnded, StepDone, WorkerEnded

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]


def steps_of(folder: Path, worker: int) -> set[int]:
    events = read_run(folder, notes=[])
    return {one.step for one in events if isinstance(one, StepDone) and one.worker == worker}


def started(tmp_path: Path) -> tuple[CommandJob, Path]:
    job = CommandJob(tmp_path, nodes=1)
    job.until(lambda: job.trainers() == (0,), "the first worker")
    return job, tmp_path / "join-1"


def test_a_coordinator_is_killed_while_logs_are_sent(tmp_path: Path) -> None:
    job, own = started(tmp_path)
    with job:
        joiner = job.join()
        job.until(lambda: len(steps_of(job.run_dir, 1)) > 5, "the first events")
        os.kill(read_announcement(job.run_dir).pid, signal.SIGKILL)
        known = len(steps_of(job.run_dir, 1))
        job.until(lambda: len(steps_of(job.run_dir, 1)) > known + 10, "more of them")
        (job.folder / "fast").touch()
        assert job.end(job.launcher)[0] == 0
        assert job.end(joiner)[0] == 0
        job.check_samples()
    copy, log = events_dir(job.run_dir) / "worker-1.jsonl", events_dir(own) / "worker-1.jsonl"
    assert copy.read_bytes() == log.read_bytes()
    summary = summarize(read_run(job.run_dir))
    assert (summary.status, len(summary.workers), summary.num_epochs) == ("done", 2, EPOCHS)
    assert not [one for one in summary.warnings if "lack" in one], summary.warnings


def test_what_came_of_a_machine_that_is_lost_is_kept(tmp_path: Path) -> None:
    job, own = started(tmp_path)
    with job:
        joiner = job.join()
        job.until(lambda: len(steps_of(job.run_dir, 1)) > 5, "the first events")
        os.killpg(joiner.pid, signal.SIGKILL)
        (job.folder / "fast").touch()
        assert job.end(job.launcher)[0] == 0
    known = steps_of(job.run_dir, 1)
    assert known
    assert known <= steps_of(own, 1)
    read_ledger(read_run(job.run_dir, notes=[]))


def test_a_worker_of_another_machine_that_fails_is_explained_here(tmp_path: Path) -> None:
    job, own = started(tmp_path)
    with job:
        joiner = job.join()
        job.until(lambda: len(steps_of(job.run_dir, 1)) > 5, "the first events")
        status = job.status()
        assert status is not None
        os.kill(next(one.pid for one in status.workers if one.worker == 1), signal.SIGKILL)
        assert job.end(joiner)[0] == 1
        (job.folder / "fast").touch()
        assert job.end(job.launcher)[0] == 0
    copy, log = events_dir(job.run_dir) / "worker-1.jsonl", events_dir(own) / "worker-1.jsonl"
    assert log.read_bytes().startswith(copy.read_bytes()), "all whole lines of a killed worker"
    assert len(steps_of(job.run_dir, 1)) == len(steps_of(own, 1))
    events = list(read_run(job.run_dir))
    ends = [one for one in events if isinstance(one, WorkerEnded)]
    assert {(one.worker, one.signal) for one in ends} == {(0, None), (1, "SIGKILL")}
    assert [one.status for one in events if isinstance(one, RunEnded) and one.is_joining] == [
        "failed"
    ]
    assert summarize(events).status == "done", "the end of one machine is not that of the run"
