# SPDX-License-Identifier: Apache-2.0
"""However a job ends, and whoever is killed, no process of it is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from gangline.engines import LocalEngine
from gangline.engines.local import WorkerCommand
from gangline.engines.supervision import StopRequest
from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# Each worker starts a process of its own, as a data loader does, and says when both are there.
BODY = """\
import json, os, signal, subprocess, sys, time
if "stubborn" in sys.argv:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
worker = json.loads(os.environ["GANGLINE_LAUNCH"])["worker"]
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
with open(f"{worker}.tmp", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(f"{worker}.tmp", f"{worker}.pids")
if "leave" in sys.argv:
    sys.exit(0)
time.sleep(100)
"""

# Trains for ever, and takes what comes behind its loop for a trained model.
LOOP = """\
import json, os
import torch
import torch.nn.functional as F
import gangline
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = gangline.batches(40, global_batch=8)
gangline.init()
model, optimizer, loader = gangline.prepare(model, optimizer, loader)
for epoch in gangline.epochs(1_000_000):
    for index in loader:
        optimizer.zero_grad()
        F.mse_loss(model(torch.ones(len(index), 4)), torch.ones(len(index), 3)).backward()
        optimizer.step()
    if epoch == 3:
        with open(f"{gangline.rank()}.tmp", "w") as file:
            file.write(str(os.getpid()))
        os.rename(f"{gangline.rank()}.tmp", f"{gangline.rank()}.pids")
gangline.save(model.state_dict(), "model.pt")
"""

COMMAND = [sys.executable, "-c", "from gangline.cli.main import main; main()", "run"]


def until(condition: Callable[[], bool], *, what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one whose new parent has not looked after it yet has, too."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def is_guard(process: psutil.Process) -> bool:
    try:
        return any("guard.py" in part for part in process.cmdline())
    except psutil.NoSuchProcess:  # the worker may have ended already
        return False


def all_gone(pids: list[int], *, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not all(is_gone(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class Launcher:
    """A `gangline run` of two workers in a process of its own."""

    def __init__(self, folder: Path, *arguments: str, body: str = BODY) -> None:
        (folder / "train.py").write_text(body)
        self.process = subprocess.Popen(
            [*COMMAND, "--nodes", "2", "--run-dir", "run", "train.py", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        files = [folder / f"{worker}.pids" for worker in (0, 1)]
        until(lambda: all(file.exists() for file in files), what="the workers")
        self.pids = [int(pid) for file in files for pid in file.read_text().split()]

    def end_with(self, number: int) -> tuple[int, str, float]:
        """Sends a signal; the exit code, what was shown, and how long all of it took."""
        started_s = time.monotonic()
        self.process.send_signal(number)
        shown, _ = self.process.communicate(timeout=20)
        assert all_gone(self.pids, within_s=2)
        return self.process.returncode, shown, time.monotonic() - started_s


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    launched: list[Launcher] = []

    def start(*arguments: str, body: str = BODY) -> Launcher:
        launched.append(Launcher(tmp_path, *arguments, body=body))
        return launched[-1]

    yield start
    for launcher in launched:
        if launcher.process.poll() is None:
            launcher.process.kill()
        launcher.process.communicate(timeout=20)
        assert all_gone(launcher.pids, within_s=5)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_everything_ends_within_two_seconds_when_the_launcher_is_told_to(
    launch: Callable[..., Launcher], number: int, code: int
) -> None:
    returncode, shown, took_s = launch().end_with(number)
    assert returncode == code
    assert took_s < 2
    assert f"interrupted: the launcher got {signal.Signals(number).name}" in shown
    assert "Traceback" not in shown


def test_everything_ends_within_two_seconds_when_workers_ignore_the_request(
    launch: Callable[..., Launcher],
) -> None:
    returncode, _, took_s = launch("stubborn").end_with(signal.SIGINT)
    assert returncode == 130
    assert took_s < 2


def test_nothing_behind_the_loop_is_done_when_the_job_is_interrupted(
    launch: Callable[..., Launcher], tmp_path: Path
) -> None:
    returncode, shown, _ = launch(body=LOOP).end_with(signal.SIGINT)
    assert returncode == 130
    assert "interrupted: the launcher got SIGINT" in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "model.pt").exists()
    logs = [path.read_text() for path in (tmp_path / "run" / "workers").iterdir()]
    assert any(log.rstrip().endswith("KeyboardInterrupt") for log in logs), logs


def test_a_second_signal_ends_the_grace(tmp_path: Path) -> None:
    request = StopRequest()
    request.receive(signal.SIGINT, None)
    assert not request.is_urgent
    request.receive(signal.SIGTERM, None)
    assert request.is_urgent
    assert request.number == signal.SIGINT, "the first one says why the job has ended"
    ready = tmp_path / "ready"
    ignoring = "import signal, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    command = WorkerCommand(
        worker=0,
        arguments=("-c", f"{ignoring} open(sys.argv[1], 'w'); time.sleep(100)", str(ready)),
        environment=dict(os.environ),
        log=tmp_path / "0.log",
    )
    with LocalEngine([command], grace_s=100, end_by=signal.SIGINT) as engine:
        engine.start()
        until(ready.exists, what="the worker")
        engine.stop(is_hurried=lambda: request.is_urgent)
        assert [one.signal for one in engine.results] == ["SIGKILL"]


def test_everything_ends_when_a_worker_is_stopped(launch: Callable[..., Launcher]) -> None:
    launcher = launch()
    os.kill(launcher.pids[0], signal.SIGSTOP)
    returncode, _, took_s = launcher.end_with(signal.SIGTERM)
    assert returncode == 143
    assert took_s < 2


def test_workers_and_their_children_die_when_the_launcher_is_killed(
    launch: Callable[..., Launcher],
) -> None:
    launcher = launch("stubborn")
    launcher.process.kill()
    launcher.process.communicate(timeout=20)
    assert all_gone(launcher.pids, within_s=2)


def test_the_job_fails_and_nothing_is_left_when_all_workers_are_killed(
    launch: Callable[..., Launcher],
) -> None:
    launcher = launch()
    for pid in (launcher.pids[0], launcher.pids[2]):
        os.kill(pid, signal.SIGKILL)
    shown, _ = launcher.process.communicate(timeout=20)
    assert launcher.process.returncode == 1
    assert "worker 0 failed: killed by SIGKILL" in shown
    assert all_gone(launcher.pids, within_s=1)


def test_what_a_worker_left_running_is_ended_when_it_is_done(
    launch: Callable[..., Launcher],
) -> None:
    launcher = launch("leave")
    launcher.process.communicate(timeout=20)
    assert launcher.process.returncode == 0
    assert all_gone(launcher.pids, within_s=1)


def test_a_worker_whose_launcher_is_already_gone_does_not_start(tmp_path: Path) -> None:
    from gangline.engines import child

    result = subprocess.run(
        [sys.executable, "-I", "-S", str(child.__file__), "1", sys.executable, "-c", "print(1)"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert result.returncode == 1
    assert "the launcher ended before this worker started" in result.stderr
    assert result.stdout == ""


def test_a_failed_start_says_what_to_check_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    commands = [
        WorkerCommand(
            worker=worker,
            arguments=("-c", "import time; time.sleep(100)"),
            environment=dict(os.environ),
            log=log,
        )
        for worker, log in enumerate([tmp_path / "0.log", tmp_path / "file" / "1.log"])
    ]
    engine = LocalEngine(commands)
    with pytest.raises(LaunchError, match=r"could not start the workers: .*; check that"):
        engine.start()
    assert engine.running == ()
    assert [result.stopped for result in engine.results] == [True]


def test_the_job_goes_on_when_its_guard_is_killed(tmp_path: Path) -> None:
    command = WorkerCommand(
        worker=0,
        arguments=("-c", "import sys; sys.stdin.read(); print('done')"),
        environment=dict(os.environ),
        log=tmp_path / "0.log",
    )
    before = set(psutil.Process().children())
    with LocalEngine([command]) as engine:
        engine.start()
        guards = [one for one in psutil.Process().children() if one not in before and is_guard(one)]
        assert len(guards) == 1
        guards[0].kill()
        assert engine.wait(20)
        assert engine.results[0].exit_code == 0
