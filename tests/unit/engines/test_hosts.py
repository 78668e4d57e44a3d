# SPDX-License-Identifier: Apache-2.0
"""`gangline run --hosts`, with an ssh of our own and scripts that need no torch."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from cases import quick_of
from fake_hosts import FakeHosts, are_gone, await_true
from gangline.cli.main import run_command
from gangline.engines.hosts import line
from gangline.engines.hosts.line import ssh_command
from gangline.protocol.agents import AGENT_VERSION
from gangline.spec.machines.hosts import Host
from gangline.version import VERSION

if TYPE_CHECKING:
    from pathlib import Path

# What a worker is to do is in files of its folder: it waits for `go`.
SCRIPT = """\
import os, sys, time
print(os.getpid(), *sys.argv[1:])
with open(f"pid-{os.getpid()}", "w"):
    pass
while not os.path.exists("go"):
    time.sleep(0.02)
"""


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHosts:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return FakeHosts(tmp_path, monkeypatch)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    """The exit code, the document and what was said beside it."""
    code = run_command(["run", "--run-dir", "r", "--json", "--hosts", "hosts.toml", *arguments])
    shown = capsys.readouterr()
    return code, json.loads(shown.out), shown.err


# An agent that is none of ours: it says what it likes.
STRANGER = """\
#!{python}
import json, sys, time

def say(**message):
    print(json.dumps(message), flush=True)

print("Welcome to this host")
say(kind="here", version={version}, gangline="{gangline}", python="3.11.2", hostname="x", clock_s=0.0,
    torch="2.0", seen_from="127.0.0.1")
for line in sys.stdin:
    kind = json.loads(line)["kind"]
    {answers}
"""


def stranger(folder: Path, answers: str) -> Path:
    """A python for a hosts file that is an agent with these answers."""
    path = folder / "stranger"
    path.write_text(
        STRANGER.format(
            python=sys.executable, version=AGENT_VERSION, gangline=VERSION, answers=answers
        )
    )
    path.chmod(0o755)
    return path


class Launched:
    """A launcher in a process of its own."""

    def __init__(self, folder: Path, *flags: str, run_dir: str = "r") -> None:
        self.folder = folder
        arguments = ["run", "--run-dir", run_dir, "--hosts", "hosts.toml", *flags, "train.py"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gangline.cli.main", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def pids(self) -> list[int]:
        """The workers that have begun."""
        return [int(path.name[4:]) for path in self.folder.glob("pid-*")]

    def await_workers(self, count: int) -> list[int]:
        """Waits until so many workers have begun; their numbers."""
        await_true(lambda: len(self.pids()) >= count, f"{count} workers")
        return self.pids()

    def end(self) -> tuple[int, str]:
        """Lets it come to its end; its exit code and what it said."""
        (self.folder / "go").touch()
        said, _ = self.process.communicate(timeout=30)
        return self.process.returncode, said

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_a_host_that_is_down_is_named_and_the_workers_of_all_others_run(
    hosts: FakeHosts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.write("alpha", "beta", "gamma", workers=2)
    hosts.take_down("beta")
    (tmp_path / "go").touch()
    code, document, said = run(capsys, "train.py", "--epochs", "3")
    assert (code, document["status"], len(document["workers"])) == (0, "done", 4)
    logs = sorted((tmp_path / "r" / "workers").iterdir())
    assert [log.read_text().split(maxsplit=1)[1] for log in logs] == ["--epochs 3\n"] * 4
    assert "host beta does not take part yet: ssh does not reach it" in said
    assert "No route to host" in said


def test_too_few_workers_begin_nothing(
    hosts: FakeHosts, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.write("alpha", "beta")
    hosts.take_down("beta")
    code, document, _ = run(capsys, "--min-workers", "2", "train.py")
    assert code == 1
    assert "1 workers can begin, and it takes 2" in document["error"]["message"]
    assert "host beta: ssh does not reach it" in document["error"]["message"]


def test_no_more_workers_than_asked_for_are_started(
    hosts: FakeHosts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.write("alpha", "beta", "gamma", workers=2)
    (tmp_path / "go").touch()
    code, document, _ = run(capsys, "--max-workers", "3", "train.py")
    assert (code, len(document["workers"])) == (0, 3)


@pytest.mark.slow
def test_a_host_that_comes_up_later_joins(hosts: FakeHosts) -> None:
    hosts.write("alpha", "beta")
    hosts.take_down("beta")
    with Launched(hosts.folder.parent) as launched:
        launched.await_workers(1)
        hosts.bring_up("beta")
        launched.await_workers(2)
        code, said = launched.end()
    assert code == 0, said
    assert "host beta has come: 1 more worker" in said


def test_a_lost_host_costs_its_workers_alone_and_comes_back(hosts: FakeHosts) -> None:
    hosts.write("alpha", "beta")
    with Launched(hosts.folder.parent) as launched:
        pids = launched.await_workers(2)
        hosts.signal_ssh("beta", signal.SIGKILL)
        await_true(lambda: not are_gone(pids) and any(are_gone([one]) for one in pids), "a loss")
        launched.await_workers(3)
        code, said = launched.end()
    assert code == 0, said
    assert "host beta is lost: its ssh connection was killed" in said
    assert "host beta has come: 1 more worker" in said
    assert "done without worker 1 (host beta: its ssh connection was killed)" in said


@pytest.mark.parametrize(
    "number", quick_of([signal.SIGINT, signal.SIGKILL], quick=[signal.SIGKILL])
)
def test_nothing_is_left_when_the_launcher_ends(hosts: FakeHosts, number: signal.Signals) -> None:
    hosts.write("alpha", "beta")
    with Launched(hosts.folder.parent) as launched:
        pids = launched.await_workers(2)
        begun_s = time.monotonic()
        launched.process.send_signal(number)
        await_true(lambda: are_gone(pids), "the workers to end", deadline_s=10)
        said, _ = launched.process.communicate(timeout=10)
    if number == signal.SIGINT:
        assert launched.process.returncode == 128 + signal.SIGINT
        assert "interrupted" in said
    assert time.monotonic() - begun_s < 10
    await_true(lambda: not list(hosts.folder.parent.glob("runs/*/token")), "the tokens to go")


@pytest.mark.slow
def test_nothing_is_left_when_the_network_goes(hosts: FakeHosts) -> None:
    hosts.write("alpha", "beta")
    with Launched(hosts.folder.parent) as launched:
        pids = launched.await_workers(2)
        hosts.take_down("beta")
        hosts.signal_ssh("beta", signal.SIGSTOP)
        try:
            await_true(lambda: any(are_gone([one]) for one in pids), "the lost one to end")
        finally:
            with contextlib.suppress(ProcessLookupError):  # the launcher may have found out first
                hosts.signal_ssh("beta", signal.SIGCONT)
        code, said = launched.end()
    assert code == 0, said
    assert "host beta is lost: " in said


def test_what_is_wrong_with_a_host_is_said(
    hosts: FakeHosts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -IS "$@"\n')
    bare.chmod(0o755)
    hosts.file.write_text(
        f'[[hosts]]\nname = "nopython"\npython = "{tmp_path}/none"\n'
        f'[[hosts]]\nname = "nogangline"\npython = "{bare}"\n'
        f'[[hosts]]\nname = "nofolder"\npython = "{sys.executable}"\nfolder = "{tmp_path}/none"\n'
    )
    code, document, _ = run(capsys, "train.py")
    message = document["error"]["message"]
    assert code == 1
    assert f"host nopython: there is no {tmp_path}/none" in message
    assert f"host nogangline: {bare} has no gangline" in message
    assert f"host nofolder: there is no folder {tmp_path}/none" in message


def test_the_script_is_brought_with_its_folder(
    hosts: FakeHosts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code_folder = tmp_path / "code"
    code_folder.mkdir()
    (code_folder / "helper.py").write_text("WORD = 'brought'\n")
    (code_folder / "main.py").write_text("import os, helper\nprint(helper.WORD, os.getcwd())\n")
    hosts.write("alpha")
    code, _, said = run(capsys, "--bring", "--include", "helper.py", "code/main.py")
    assert code == 0, said
    home = hosts.folder / "alpha"
    assert (tmp_path / "r" / "workers" / "0.log").read_text() == f"brought {home}\n"
    assert not list(home.rglob("helper.py"))


def test_a_host_that_falls_silent_while_it_is_told_is_given_up(
    hosts: FakeHosts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(line, "SILENCE_S", 0.3)
    hosts.write("beta", python=stranger(tmp_path, "pass"))
    code, document, _ = run(capsys, "--bring", "train.py")
    assert code == 1
    assert "host beta: nothing was heard of it for 0.3 s" in document["error"]["message"]


def test_a_host_cannot_speak_for_the_workers_of_others(
    hosts: FakeHosts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = """
    if kind == "briefed":
        say(kind="ready", run_dir="x")
    if kind == "coordinator":
        say(kind="met", calls_out=False)
    if kind == "start":
        for worker in (0, 7):
            say(kind="wrote", worker=worker, data="bGll")
            say(kind="ended", worker=worker, exit_code=1, signal=None)
        say(kind="ended", worker=1, exit_code=0, signal=None)
        say(kind="ended", worker=1, exit_code=1, signal=None)
        break
    """
    hosts.write("alpha")
    with hosts.file.open("a") as file:
        file.write(f'[[hosts]]\nname = "beta"\npython = "{stranger(tmp_path, answers)}"\n')
    (tmp_path / "go").touch()
    code, document, said = run(capsys, "train.py")
    assert (code, document["status"]) == (0, "done"), said
    logs = {log.name: log.read_text() for log in (tmp_path / "r" / "workers").iterdir()}
    assert list(logs) == ["0.log"]
    assert "lie" not in logs["0.log"]


@pytest.mark.slow
def test_two_jobs_run_on_the_same_hosts(hosts: FakeHosts) -> None:
    hosts.write("alpha", "beta")
    folder = hosts.folder.parent
    with Launched(folder, run_dir="one") as first, Launched(folder, run_dir="two") as second:
        first.await_workers(4)
        assert [launched.end()[0] for launched in (first, second)] == [0, 0]
    logs = sorted(path.name for path in folder.glob("runs/*@alpha"))
    assert logs == ["one@alpha", "two@alpha"]


def test_flags_that_do_not_fit_are_refused(
    hosts: FakeHosts, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.write("alpha")
    for flags, said in (
        (("--nodes", "2"), "--hosts and --nodes"),
        (("--quota",), "--hosts and --quota cannot be given together"),
        (("--transport", "gloo"), "does not encrypt"),
        (("--include", "x"), "--include says what is sent"),
        (("--max-workers", "1", "--min-workers", "2"), "--max-workers 1 is below --min-workers 2"),
    ):
        code, document, _ = run(capsys, *flags, "train.py")
        assert (code, said in document["error"]["message"]) == (2, True), document
    hosts.file.with_name("run.toml").write_text('hosts.file = "hosts.toml"\n')
    assert run_command(["run", "--config", "run.toml", "--nodes", "2", "train.py"]) == 2
    assert "--hosts and --nodes" in capsys.readouterr().err
    assert run_command(["run", "--wait", "3", "train.py"]) == 2
    assert "--wait is about the hosts of a run" in capsys.readouterr().err


def test_nothing_secret_and_no_option_of_ssh_is_in_its_arguments() -> None:
    host = Host(name="a", address="b", user="c", port=23, python="~/my venv/bin/python")
    *options, dashes, destination, command = ssh_command(host)
    assert (dashes, destination) == ("--", "c@b")
    assert command == "exec ~/'my venv/bin/python' -m gangline.engines.agent"
    assert "BatchMode=yes" in options
    assert options[-2:] == ["-p", "23"]
