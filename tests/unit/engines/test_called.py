# SPDX-License-Identifier: Apache-2.0
"""Agents that call: who is let in, who is not, and a run whose engine is a process of ours."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from gangline.engines.agent.called import device_of, inherited, place_of
from gangline.engines.called.process import LauncherProcess
from gangline.engines.called.reception import Caller, Reception
from gangline.engines.running import run_job
from gangline.files.certificates import make_tls_files
from gangline.launch.engines.agents import called
from gangline.launch.engines.slots import AGENT, write_invitation
from gangline.launch.program import find_program
from gangline.protocol.agents import Beat
from gangline.protocol.calling import Call, Invitation, SocketChannel, dial
from gangline.spec.config import HostsConfig, RunConfig
from gangline.spec.engines.engine import EngineConfig
from gangline.spec.errors import LaunchError
from gangline.worker.started.ranks import Ranks

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

DEADLINE_S = 40.0
SCRIPT = """\
import os, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
import json
worker = json.loads(os.environ["GANGLINE_LAUNCH"])["worker"]
print(f"worker {worker} in slot {os.environ.get('SLOT')}", flush=True)
(folder / f"{worker}.pid").write_text(str(os.getpid()))
while not (folder / "end").exists():
    time.sleep(0.02)
"""


@pytest.fixture
def reception(tmp_path: Path) -> Iterator[Reception]:
    tls = make_tls_files(tmp_path, run="r", hosts=["127.0.0.1"])
    found = Reception(("127.0.0.1", 0), tls)
    yield found
    found.close()


def callers(reception: Reception, *, is_done: object = None) -> list[Caller]:
    """Who is let in before the deadline, or before whoever called is turned away."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = reception.look()
        if found:
            return found
        if isinstance(is_done, socket.socket) and _is_hung_up(is_done):
            return []
        time.sleep(0.01)
    raise AssertionError("nobody was let in, and nobody was turned away")


def _is_hung_up(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def dialled(reception: Reception) -> ssl.SSLSocket:
    """A connection, whose handshake needs the other end to look."""
    found: list[ssl.SSLSocket] = []

    def connect() -> None:
        found.append(dial(reception.invitation, deadline_s=10)[0])

    thread = threading.Thread(target=connect)
    thread.start()
    while thread.is_alive():
        assert not reception.look()
        time.sleep(0.005)
    return found[0]


def test_who_knows_the_secret_is_let_in_and_heard(reception: Reception) -> None:
    invitation = Invitation.read(reception.invitation.line())
    with dialled(reception) as connection:
        channel: SocketChannel[Beat] = SocketChannel(connection, Beat)
        channel.send(Call(secret=invitation.secret, name="n0-1", rank=1, slots=4))
        channel.send(Beat())
        (caller,) = callers(reception)
        assert (caller.name, caller.rank, caller.slots) == ("n0-1", 1, 4)
        heard: list[object] = []
        deadline = time.monotonic() + DEADLINE_S
        while not heard and time.monotonic() < deadline:
            heard += caller.line.listen()
        assert heard == [Beat()]
        assert caller.line.problem() is None
        caller.line.close()


@pytest.mark.parametrize("said", [Call(secret="guessed", name="n0"), Beat()])
def test_who_does_not_is_hung_up_on(reception: Reception, said: msgspec.Struct) -> None:
    with dialled(reception) as connection:
        SocketChannel(connection, Beat).send(said)
        connection.setblocking(True)
        assert callers(reception, is_done=connection) == []


def test_who_speaks_no_tls_is_hung_up_on(reception: Reception) -> None:
    host, _, port = reception.invitation.places[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert callers(reception, is_done=plain) == []


def test_an_agent_trusts_only_who_invited_it(reception: Reception, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = make_tls_files(tmp_path / "other", run="x", hosts=["127.0.0.1"])
    invitation = msgspec.structs.replace(
        reception.invitation, authority=Path(other.authority).read_text()
    )
    said: list[str] = []

    def call() -> None:
        with pytest.raises(LaunchError) as caught:
            dial(invitation, deadline_s=0)
        said.append(str(caught.value))

    thread = threading.Thread(target=call)
    thread.start()
    while thread.is_alive():
        reception.look()
        time.sleep(0.005)
    assert "the launcher is not reached" in said[0]


def test_what_is_no_invitation_is_said() -> None:
    done = subprocess.run(
        [sys.executable, *AGENT],
        input=b"hello\n",
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 1
    assert b"this is no invitation of a launcher" in done.stderr


def test_a_place_is_named_by_its_machine_and_its_rank() -> None:
    assert place_of(Ranks(3, 8), "node_7.cluster.example") == "node-7-3"
    assert place_of(None, "") == "node-0"


def test_places_of_one_machine_get_a_gpu_each_unless_the_engine_gave_them_one() -> None:
    ranks = Ranks(5, 8, 1, 4)
    assert device_of(ranks, {}, num_devices=4) == {"CUDA_VISIBLE_DEVICES": "1"}
    assert device_of(ranks, {"CUDA_VISIBLE_DEVICES": "3"}, num_devices=4) == {}
    assert device_of(ranks, {}, num_devices=0) == {}
    assert inherited({"PMI_FD": "9"}) == (9,)
    assert inherited({}) == ()


def test_a_launcher_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "launcher.log"
    code = "print('not enough slots'); raise SystemExit(3)"
    process = LauncherProcess([sys.executable, "-c", code], environment=os.environ, log=log)
    deadline = time.monotonic() + DEADLINE_S
    while (said := process.problem()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.close()
    assert "has ended (exit code 3): not enough slots" in said


class OwnSlots:
    """An engine made of processes of this machine."""

    def __init__(self, count: int) -> None:
        self.expected = count
        self.processes: list[subprocess.Popen[bytes]] = []
        self.file: Path | None = None

    def start(self, invitation: Invitation, run_dir: Path) -> None:
        self.file = write_invitation(invitation, run_dir)
        assert self.file.stat().st_mode & 0o777 == 0o600
        for number in range(self.expected):
            self.add(number)

    def add(self, number: int) -> None:
        command = [sys.executable, *AGENT, str(self.file), "--name", f"slot-{number}"]
        environment = {**os.environ, "SLOT": str(number)}
        self.processes.append(subprocess.Popen(command, env=environment))

    def problem(self) -> str | None:
        is_over = self.processes and all(one.poll() is not None for one in self.processes)
        return "all agents have ended" if is_over else None

    def close(self) -> None:
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


class Noting:
    """Does something when all workers run, and keeps what is noted."""

    def __init__(self, folder: Path, do: object, *, count: int) -> None:
        self.folder, self.do, self.count = folder, do, count
        self.notes: list[str] = []

    def tick(self) -> None:
        if callable(self.do) and len(list(self.folder.glob("*.pid"))) >= self.count:
            do, self.do = self.do, None
            do()

    def worker_ended(self, result: object) -> None: ...
    def begins(self, come: int) -> None: ...
    def main_is(self, worker: int) -> None: ...
    def note(self, what: str, reason: str, **numbers: float) -> None:
        self.notes.append(what)
        if what == "take_in_host":
            (self.folder / "end").touch()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def run_called(script: Path, slots: OwnSlots, watcher: Noting) -> object:
    config = RunConfig(
        engine=EngineConfig(name="mpi"), hosts=HostsConfig(listen="127.0.0.1"), run="r"
    )
    program = find_program(script, [str(script.parent)], None, verb="run")
    with called(config, program, run_dir=None, tell=print, slots=slots) as found:
        return run_job(found.job, watcher=watcher, make_engine=found.make_engine)


def test_agents_found_a_job_one_is_killed_and_another_comes_late(script: Path) -> None:
    folder = script.parent
    slots = OwnSlots(2)

    def strike() -> None:
        os.kill(slots.processes[1].pid, signal.SIGKILL)
        slots.add(2)

    watcher = Noting(folder, strike, count=2)
    result = run_called(script, slots, watcher)
    assert result.status == "done"  # type: ignore[attr-defined]
    assert {"lose_host", "take_in_host"} <= set(watcher.notes)
    assert "slot 0" in (folder / "runs/r/workers/0.log").read_text()
    assert not any(psutil.pid_exists(int(one.read_text())) for one in folder.glob("*.pid"))


def test_an_engine_that_ends_before_its_agents_come_is_named(script: Path) -> None:
    class Broken(OwnSlots):
        def start(self, invitation: Invitation, run_dir: Path) -> None: ...

        def problem(self) -> str | None:
            return "mpirun has ended (exit code 1): there are not enough slots"

    with pytest.raises(LaunchError, match="there are not enough slots"):
        run_called(script, Broken(2), Noting(script.parent, None, count=9))


@pytest.mark.slow
def test_an_agent_that_is_told_to_go_has_its_worker_leave_first(script: Path) -> None:
    folder = script.parent
    slots = OwnSlots(2)

    def strike() -> None:
        os.kill(slots.processes[1].pid, signal.SIGTERM)
        (folder / "end").touch()

    result = run_called(script, slots, Noting(folder, strike, count=2))
    assert result.status == "done"  # type: ignore[attr-defined]
    assert slots.processes[1].returncode == 0
