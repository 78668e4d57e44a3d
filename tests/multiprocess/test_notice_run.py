# SPDX-License-Identifier: Apache-2.0
"""A machine that is about to end: the state of the job is safe before it does."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "faults"))

from command_jobs import EPOCHS, SAMPLES, SCRIPT, CommandJob

from gangline.cli.main import run_command
from gangline.eventlog import read_run
from gangline.observe.ledger import read_ledger
from gangline.spec.event import Decision

PREPARE = "gangline.prepare(model, optimizer, loader"


def job_with_checkpoints(folder: Path, *flags: str, nodes: int) -> CommandJob:
    job = CommandJob(folder, *flags, nodes=nodes)
    kept = f'{PREPARE}, checkpoint="kept", every=100000'
    (folder / "train.py").write_text(SCRIPT.replace(PREPARE, kept))
    return job


def decided(folder: Path, what: str) -> list[Decision]:
    events = read_run(folder, notes=[])
    return [one for one in events if isinstance(one, Decision) and one.what == what]


@pytest.mark.slow
def test_the_last_to_leave_keeps_the_state(tmp_path: Path) -> None:
    flags = ("--notice", "file:go", "--notice-deadline", "20")
    with job_with_checkpoints(tmp_path, *flags, nodes=1) as job:
        job.until(lambda: job.trainers() == (0,), "the first step")
        (tmp_path / "go").touch()
        code, shown = job.end(job.launcher)
        assert code == 128 + signal.SIGTERM, shown
    assert "this machine ends in 20 s (go is there): its workers leave the job" in shown
    (written,) = decided(job.run_dir, "checkpoint_written")
    (left,) = decided(job.run_dir, "leave")
    assert written.numbers["step"] == left.numbers["step"]


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_all_leave_where_the_coordinator_ends_and_the_job_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job_with_checkpoints(tmp_path, "--notice", "sigterm", nodes=2) as job:
        job.until(lambda: job.trainers() == (0, 1), "the first step")
        joiner = job.join()
        job.until(lambda: job.trainers() == (0, 1, 2), "the newcomer")
        os.kill(job.launcher.pid, signal.SIGTERM)
        code, shown = job.end(job.launcher)
        assert code == 128 + signal.SIGTERM, shown
        assert job.end(joiner)[0] == 0
    assert len(decided(job.run_dir, "leave")) == 3
    (written,) = decided(job.run_dir, "checkpoint_written")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fast").touch()
    assert run_command(["run", "--resume", "--run-dir", "run", "--json", "train.py"]) == 0
    before = read_ledger(read_run(tmp_path / "run" / "earlier" / "1", notes=[]))
    after = read_ledger(read_run(tmp_path / "run", notes=[]))
    assert max(one.step for one in before.windows) + 1 == written.numbers["step"]
    assert before.num_samples + after.num_samples == SAMPLES * EPOCHS


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_machine_that_joined_leaves_and_the_others_go_on(tmp_path: Path) -> None:
    with CommandJob(tmp_path, nodes=1) as job:
        job.until(lambda: job.trainers() == (0,), "the first step")
        joiner = job.start("join", "run", "--run-dir", "join-1", "--notice", "command:test -e go")
        job.until(lambda: job.trainers() == (0, 1), "the newcomer")
        (tmp_path / "go").touch()
        code, shown = job.end(joiner)
        assert code == 0, shown
        assert "(`test -e go` says so): its workers leave the job" in shown
        (tmp_path / "fast").touch()
        assert job.end(job.launcher)[0] == 0
        job.check_samples()
    assert [one.numbers["worker"] for one in decided(job.run_dir, "leave")] == [1.0]
