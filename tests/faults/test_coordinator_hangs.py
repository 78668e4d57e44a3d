# SPDX-License-Identifier: Apache-2.0
"""The coordinator hangs, alone or while a worker dies; a worker stays stopped when the job is over."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from command_jobs import CommandJob

from gangline.cli.main import run_command
from gangline.engines import Job, coordination
from gangline.engines.coordination import Coordination
from gangline.engines.ending import job_end
from gangline.eventlog import read_run
from gangline.files.announcement import read_announcement
from gangline.spec.cluster import Cluster
from gangline.spec.config import RunConfig
from gangline.spec.event import Decision, WorkerEnded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEADLINE_S = 60.0


class Sink:
    """An event log that is only looked at."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def write(self, event: Any) -> None:
        self.events.append(event)

    def close(self) -> None:
        pass


def tick_until(watched: Coordination, condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        watched.tick()
        time.sleep(0.02)


def serving_pid(folder: Path) -> int:
    return read_announcement(folder).pid


def coordinators(folder: Path) -> set[int]:
    """The coordinator processes of a run: the one that serves, and spares."""
    own = psutil.Process().children(recursive=True)
    found = set()
    for process in own:
        try:
            arguments = process.cmdline()
        except psutil.NoSuchProcess:
            continue
        if "gangline.coordinator" in arguments and str(folder) in arguments:
            found.add(process.pid)
    return found


def test_a_stopped_coordinator_is_replaced_by_the_spare_at_the_same_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "SPARE_AFTER_S", 0.0)
    config = RunConfig(run="r", cluster=Cluster.of_speeds((1.0, 1.0)))
    job = Job(config=config, run_dir=tmp_path, script=tmp_path / "none.py")
    log = Sink()
    with Coordination(job, os.environ, events=log) as watched:
        tick_until(watched, lambda: watched.standing, "the coordinator")
        first = read_announcement(tmp_path)
        tick_until(watched, lambda: watched.has_spare, "the spare")
        (spare,) = coordinators(tmp_path) - {first.pid}
        os.kill(first.pid, signal.SIGSTOP)
        tick_until(watched, lambda: log.events, "the decision")
        assert not psutil.pid_exists(first.pid), "killed and reaped, before another one serves"
        tick_until(watched, lambda: serving_pid(tmp_path) != first.pid, "the spare to serve")
        second = read_announcement(tmp_path)
        assert (second.pid, second.url) == (spare, first.url)
        tick_until(watched, lambda: watched.standing, "a sign of life")
        os.kill(second.pid, signal.SIGKILL)
        tick_until(watched, lambda: serving_pid(tmp_path) != second.pid, "the third")
        assert read_announcement(tmp_path).url == first.url
    (hung, died) = log.events
    assert (hung.what, hung.numbers["had_spare"]) == ("restart_coordinator", 1.0)
    assert "the coordinator hangs: it is stopped, and has not answered for" in hung.reason
    assert died.reason == "the coordinator ended (killed by SIGKILL); the workers go on meanwhile"
    assert not coordinators(tmp_path)


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("number", "sync"),
    [
        (signal.SIGSTOP, "full"),
        pytest.param(signal.SIGKILL, "full", marks=pytest.mark.slow),
        pytest.param(signal.SIGSTOP, "flexible", marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_dies_with_the_coordinator_is_the_only_one_lost(
    tmp_path: Path, number: int, sync: str
) -> None:
    with CommandJob(tmp_path, "--sync", sync, nodes=3) as job:
        job.until(lambda: len(job.trainers()) == 3, "the workers")
        status = job.status()
        assert status is not None
        (victim,) = [one.pid for one in status.workers if one.worker == 1]
        os.kill(serving_pid(job.run_dir), number)
        os.kill(victim, signal.SIGKILL)
        job.until(lambda: job.has_decided("restart_coordinator"), "another coordinator")
        job.until(lambda: job.trainers() == (0, 2), "the survivors")
        (job.folder / "fast").touch()
        code, shown = job.end(job.launcher)
    assert code == 0, shown
    assert "done without worker 1" in shown
    job.check_samples()
    said = [one for one in job.decisions() if one.what == "restart_coordinator"]
    assert len(said) == 1, "nobody was given up without need"


STOPS = """\
import json, os, signal
worker = json.loads(os.environ["GANGLINE_LAUNCH"])["worker"]
if worker == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
print("done")
"""


def test_a_worker_that_stays_stopped_when_the_job_is_over_is_ended_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job_end, "STOPPED_GRACE_S", 0.5)
    (tmp_path / "train.py").write_text(STOPS)
    assert run_command(["run", "--nodes", "2", "--run-dir", "run", "train.py"]) == 0
    shown = capsys.readouterr()
    stayed = "stayed stopped for 0.5 s when the job was over"
    assert f"worker 1 {stayed}: ended" in shown.out
    assert f"done without worker 1 ({stayed}, and was ended)" in shown.err
    events = list(read_run(tmp_path / "run", notes=[]))
    (said,) = [one for one in events if isinstance(one, Decision) and one.what == "end_stopped"]
    assert said.numbers == {"worker": 1.0}
    reasons = {one.worker: one.reason for one in events if isinstance(one, WorkerEnded)}
    assert reasons == {0: "done", 1: f"{stayed}, and was ended"}


def test_a_worker_that_is_woken_in_time_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job_end, "STOPPED_GRACE_S", 60.0)
    wakes = """\
else:
    import pathlib, psutil, time
    while not (other := [
        one for one in psutil.Process().parent().children()
        if one.environ().get("GANGLINE_LAUNCH", "").find('"worker":1') >= 0
        and one.status() == psutil.STATUS_STOPPED
    ]):
        time.sleep(0.05)
    if os.fork() == 0:
        os.setsid()
        time.sleep(1.0)
        other[0].resume()
        os._exit(0)
"""
    (tmp_path / "train.py").write_text(STOPS.replace("print(", wakes + "print("))
    assert run_command(["run", "--nodes", "2", "--run-dir", "run", "train.py"]) == 0
    events = list(read_run(tmp_path / "run", notes=[]))
    reasons = {one.worker: one.reason for one in events if isinstance(one, WorkerEnded)}
    assert reasons == {0: "done", 1: "done"}
