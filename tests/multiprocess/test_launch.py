# SPDX-License-Identifier: Apache-2.0
"""Jobs of real worker processes, started as `gangline run` starts them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gangline.cli.main import run_command
from gangline.engines import Job, JobResult, run_job
from gangline.eventlog import read_run
from gangline.spec.cluster import Cluster
from gangline.spec.config import RunConfig
from gangline.spec.event import RunEnded, RunStarted, WorkerEnded

if TYPE_CHECKING:
    from pathlib import Path

LAST_WORDS = """
import pathlib, time
print("last words of", worker, flush=True)
said = pathlib.Path("said")
if worker == 0:
    said.touch()
while not said.exists():  # else the main worker may be stopped before it has said anything
    time.sleep(0.01)
sys.exit(3 * worker)
"""
PREAMBLE = """\
import json, os, sys
launch = json.loads(os.environ["GANGLINE_LAUNCH"])
worker = launch["worker"]
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "train.py"


def run(script: Path, body: str, *, workers: int = 2, arguments: tuple[str, ...] = ()) -> JobResult:
    script.write_text(PREAMBLE + body)
    folder = script.parent / "run"
    config = RunConfig(run="test", cluster=Cluster.of_speeds((1.0,) * workers))
    return run_job(Job(config=config, run_dir=folder, script=script, arguments=arguments))


def log_of(script: Path, worker: int) -> str:
    return (script.parent / "run" / "workers" / f"{worker}.log").read_text()


def test_each_worker_writes_its_own_log(script: Path) -> None:
    result = run(script, "print('out', worker)\nprint('err', worker, file=sys.stderr)\n")
    assert result.status == "done"
    assert [worker.reason for worker in result.workers] == ["done", "done"]
    assert [log_of(script, worker) for worker in (0, 1)] == ["out 0\nerr 0\n", "out 1\nerr 1\n"]


def test_the_script_sees_its_arguments_and_its_own_folder(script: Path) -> None:
    (script.parent / "helper.py").write_text("NAME = 'found'\n")
    run(
        script,
        "import helper\nprint(helper.NAME, sys.argv[1:])\n",
        workers=1,
        arguments=("--lr", "0.1", "--", "-x"),
    )
    assert log_of(script, 0) == "found ['--lr', '0.1', '--', '-x']\n"


def test_the_others_are_stopped_when_one_worker_raises(script: Path) -> None:
    body = "import time\nif worker == 1: raise ValueError('boom')\ntime.sleep(60)\n"
    result = run(script, body, workers=3)
    assert result.status == "failed"
    assert result.wall_s < 10
    assert result.reason == "worker 1: ValueError: boom"
    assert result.cause is not None
    assert result.cause.worker == 1
    assert result.cause.traceback is not None
    assert result.cause.traceback.startswith("Traceback (most recent call last):")
    assert [worker.stopped for worker in result.workers] == [True, False, True]


def test_the_signal_is_named_when_a_worker_is_killed(script: Path) -> None:
    result = run(script, "os.kill(os.getpid(), 9)\n", workers=1)
    assert result.reason == "worker 0: killed by SIGKILL"


def test_the_cause_is_found_when_its_victim_ends_first(script: Path) -> None:
    body = """
import time
from gangline.spec.errors import ExchangeError
if worker == 0: raise ExchangeError("worker 1 is gone")
def log_of_0():
    return open("run/workers/0.log").read() if os.path.exists("run/workers/0.log") else ""
while "ExchangeError" not in log_of_0():
    time.sleep(0.01)
time.sleep(0.1)
raise ValueError("the cause")
"""
    result = run(script, body)
    assert result.reason == "worker 1: ValueError: the cause"


def test_an_exit_code_is_a_failure_too(script: Path) -> None:
    result = run(script, "print('last words')\nsys.exit(worker and 3)\n")
    assert result.reason == "worker 1: exit code 3"


def test_the_launcher_writes_what_happened(script: Path) -> None:
    run(script, "sys.exit(worker)\n")
    events = list(read_run(script.parent / "run"))
    started = next(event for event in events if isinstance(event, RunStarted))
    assert started.workers == 2
    assert started.nodes == ["n0", "n1"]
    assert started.command == [str(script)]
    codes = {event.worker: event.exit_code for event in events if isinstance(event, WorkerEnded)}
    assert codes[1] == 1
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    assert (ended.status, ended.reason) == ("failed", "worker 1: exit code 1")


def test_run_shows_the_scale_the_output_and_the_folder(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(PREAMBLE + "print('speed', round(launch['speed'], 3), sys.argv[1:])\n")
    flags = ["--speeds", "1,0.5", "-o", "--name", "digits"]
    assert run_command(["run", *flags, "train.py", "--json", "-o"]) == 0
    shown = capsys.readouterr().out
    assert "emulating 2 nodes of speed 1, 0.5" in shown
    assert "[0] speed " in shown
    assert "[1] speed " in shown
    assert "['--json', '-o']" in shown
    assert "run folder: runs/digits\n" in shown
    assert (script.parent / "runs/digits/events/launcher.jsonl").is_file()


def test_run_shows_the_traceback_once_with_the_worker(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(PREAMBLE + "if worker == 1: raise ValueError('boom')\n")
    assert run_command(["run", "--nodes", "2", "train.py"]) == 1
    shown = capsys.readouterr()
    assert "worker 1 failed: ValueError: boom" in shown.err
    assert (shown.out + shown.err).count("Traceback (most recent call last)") == 1
    assert "all it wrote: runs/train-" in shown.err


def test_run_shows_the_traceback_once_when_output_is_shown(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text("raise ValueError('boom')\n")
    assert run_command(["run", "-o", "train.py"]) == 1
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("Traceback (most recent call last)") == 1
    assert "worker 0 failed: ValueError: boom" in shown.err


def test_run_shows_the_last_lines_when_there_is_no_traceback(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(PREAMBLE + LAST_WORDS)
    assert run_command(["run", "--nodes", "2", "train.py"]) == 1
    shown = capsys.readouterr()
    assert "worker 1 failed: exit code 3\nlast words of 1\n" in shown.err
    assert "last words of 0\n" in shown.out, "the main worker's output is shown as it comes"
    assert "last words of 1\n" not in shown.out


def test_a_module_is_run_as_python_does_it(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = script.parent / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "helper.py").write_text("NAME = 'found'\n")
    (package / "train.py").write_text(
        "import sys\nfrom package.helper import NAME\n"
        "print(NAME, __name__, sys.argv[1:], sys.path[0])\n"
    )
    assert run_command(["run", "--name", "m", "-m", "package.train", "x.py", "--json", "-o"]) == 0
    shown = capsys.readouterr().out
    assert f"found __main__ ['x.py', '--json', '-o'] {script.parent}\n" in shown
    events = read_run(script.parent / "runs" / "m")
    started = next(event for event in events if isinstance(event, RunStarted))
    assert started.command == ["-m", "package.train", "x.py", "--json", "-o"]


def test_run_prints_one_document_when_json_is_asked(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(PREAMBLE + "print('hello')\nsys.exit(worker)\n")
    assert (
        run_command(["run", "--json", "-o", "--nodes", "2", "--run-dir", "here", "train.py"]) == 1
    )
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["status"] == "failed"
    assert document["cause"] == 1
    assert document["run_dir"] == str(script.parent / "here")
    assert [worker["exit_code"] for worker in document["workers"]][1] == 1
    assert document["summary"]["steps"] == 0
    assert "[1] hello" in shown.err
