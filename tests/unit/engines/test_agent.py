# SPDX-License-Identifier: Apache-2.0
"""The agent on a host, spoken to directly: what it does and refuses, and that it leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from fake_hosts import are_gone, await_true
from gangline.engines.agent.place import HostPlace
from gangline.files.certificates import Authority, request_certificate
from gangline.protocol.agents import (
    Brief,
    Briefed,
    Channel,
    Coordinator,
    End,
    Ended,
    File,
    FromAgent,
    Here,
    Ready,
    Start,
    Unfit,
    Wrote,
)
from gangline.protocol.launch import Launch
from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterator

M = TypeVar("M")
# A worker that ignores nothing and has a child, whose numbers it writes.
WORKER = """\
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), child.pid)
time.sleep(600)
"""


def brief(folder: Path | None, **changes: object) -> Brief:
    asked: dict[str, object] = {
        "run": "digits",
        "host": "alpha",
        "folder": None if folder is None else str(folder),
        "script": "train.py",
        "module": None,
        "arguments": (),
        "brings": False,
        "end_by": int(signal.SIGINT),
        "grace_s": 0.5,
    }
    return Brief(**{**asked, **changes})  # type: ignore[arg-type]


class AgentProcess:
    """An agent, and this test as its launcher."""

    def __init__(self, home: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gangline.engines.agent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "HOME": str(home)},
            bufsize=0,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._channel: Channel[FromAgent] = Channel(
            self.process.stdout.fileno(), self.process.stdin.fileno(), FromAgent
        )
        self.heard: list[FromAgent] = []
        self.say = self._channel.send

    def hear(self, kind: type[M]) -> M:
        """Waits for a message of a kind."""

        def is_there() -> bool:
            self.heard += self._channel.receive()
            return any(isinstance(one, kind) for one in self.heard)

        await_true(is_there, kind.__name__)
        return next(one for one in self.heard if isinstance(one, kind))

    def begin(self, folder: Path) -> list[int]:
        """Starts a worker; the numbers of its processes."""
        (folder / "train.py").write_text(WORKER)
        self.say(brief(folder))
        self.say(Briefed())
        self.hear(Ready)
        authority = Authority.make("digits")
        request, key = request_certificate()
        self.say(
            Coordinator(
                url="wss://127.0.0.1:1",
                token="t" * 20,
                certificate=authority.sign(request.decode()).decode(),
                key=key.decode(),
                authority=authority.pem.decode(),
                calls_out=None,
                ports=None,
                reached_at=None,
            )
        )
        launch = Launch(run="digits", run_dir="", worker=3, workers=1, token_file="")
        self.say(Start(launch=launch, environment={}, neighbours=1))
        return [int(one) for one in self.hear(Wrote).data.split()]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    one = AgentProcess(tmp_path)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()
        for pipe in (one.process.stdin, one.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


def secrets_in(folder: Path) -> list[Path]:
    return [path for name in ("token", "key.pem") for path in folder.rglob(name)]


def test_what_a_worker_writes_is_told_and_nothing_is_left(
    agent: AgentProcess, tmp_path: Path
) -> None:
    assert agent.hear(Here).python.startswith("3.")
    pids = agent.begin(tmp_path)
    assert [path.stat().st_mode & 0o077 for path in secrets_in(tmp_path)] == [0, 0]
    agent.say(End())
    assert agent.hear(Ended).worker == 3
    await_true(lambda: are_gone(pids), "the worker and its child to end")
    assert agent.process.wait(10) == 0
    assert secrets_in(tmp_path) == []


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_workers_end_with_their_line(agent: AgentProcess, tmp_path: Path, how: str) -> None:
    pids = agent.begin(tmp_path)
    if how == "closed":
        assert agent.process.stdin is not None
        agent.process.stdin.close()
    else:
        agent.process.kill()
    await_true(lambda: are_gone(pids), "the worker and its child to end")


def test_what_is_missing_is_named(agent: AgentProcess, tmp_path: Path) -> None:
    agent.say(brief(tmp_path / "nowhere"))
    assert "there is no folder" in agent.hear(Unfit).reason


def test_a_script_that_is_not_there_is_named(agent: AgentProcess, tmp_path: Path) -> None:
    agent.say(brief(tmp_path))
    agent.say(Briefed())
    assert "there is no script" in agent.hear(Unfit).reason


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "", "a\0b"])
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    place = HostPlace(brief(tmp_path, brings=True))
    with pytest.raises(LaunchError, match="leads out"):
        place.write(File(name=name, data=b""))


def test_files_are_brought_in_pieces_and_links_are_not_followed(tmp_path: Path) -> None:
    place = HostPlace(brief(tmp_path, brings=True))
    place.write(File(name="a/train.py", data=b"one", is_executable=True))
    place.write(File(name="a/train.py", data=b" two", is_first=False))
    written = place.run_dir / "code" / "a" / "train.py"
    assert written.read_bytes() == b"one two"
    assert written.stat().st_mode & 0o777 == 0o700
    with pytest.raises(LaunchError, match="File exists"):
        place.write(File(name="a/train.py", data=b"again"))
    (place.run_dir / "code" / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LaunchError):
        place.write(File(name="link", data=b"x", is_first=False))
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    place = HostPlace(brief(tmp_path, brings=True))
    (place.run_dir / "code").mkdir()
    os.mknod(place.run_dir / "code" / "big", 0o600 | 0o020000, os.makedev(1, 7))
    with pytest.raises(LaunchError, match="No space left on device"):
        place.write(File(name="big", data=b"x", is_first=False))
