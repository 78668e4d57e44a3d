# SPDX-License-Identifier: Apache-2.0
"""Hosts that are folders of this machine: an `ssh` of our own runs there what it is told to.

Between the launcher and the agent there is a process that copies, as with the real ssh: when it is
killed, the line is closed; when it is stopped, the line is silent.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import pytest

_SSH = """\
import os, subprocess, sys, threading

arguments = sys.argv[1:]
destination, command = arguments[arguments.index("--") + 1 :]
name = destination.rpartition("@")[2]
home = os.path.join({folder!r}, name)
if os.path.exists(home + ".down"):
    sys.stderr.write(f"ssh: connect to host {{name}} port 22: No route to host\\n")
    sys.exit(255)
os.makedirs(home, exist_ok=True)
with open(home + ".pid", "w") as file:
    file.write(str(os.getpid()))
environment = {{**os.environ, "HOME": home, "SSH_CONNECTION": "127.0.0.1 40000 127.0.0.1 22"}}
agent = subprocess.Popen(
    ["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=home,
    env=environment, bufsize=0, start_new_session=True,
)


def copy(source, target):
    try:
        while block := os.read(source, 65536):
            os.write(target, block)
    except OSError:
        pass


def copy_in():
    copy(0, agent.stdin.fileno())
    agent.stdin.close()


threading.Thread(target=copy_in, daemon=True).start()
copy(agent.stdout.fileno(), 1)
os._exit(agent.wait())
"""


class FakeHosts:
    """The hosts of a test, and the file that names them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "hosts"
        self.file = folder / "hosts.toml"
        self.folder.mkdir()
        programs = folder / "bin"
        programs.mkdir()
        ssh = programs / "ssh"
        text = _SSH.format(folder=str(self.folder))
        ssh.write_text(f"#!{sys.executable} -IS\n{text}")
        ssh.chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    def write(self, *names: str, **keys: object) -> Path:
        """A hosts file with these hosts, which all have these keys."""
        keys = {"python": sys.executable, **keys}
        defaults = "".join(f"{key} = {_toml(value)}\n" for key, value in keys.items())
        hosts = "".join(f'[[hosts]]\nname = "{name}"\n' for name in names)
        self.file.write_text(f"[defaults]\n{defaults}{hosts}")
        return self.file

    def take_down(self, name: str) -> None:
        """From now on nobody gets a connection to a host; those that are there stay."""
        (self.folder / f"{name}.down").touch()

    def bring_up(self, name: str) -> None:
        """The host can be reached again."""
        (self.folder / f"{name}.down").unlink()

    def signal_ssh(self, name: str, number: signal.Signals) -> None:
        """Sends a signal to the ssh process that leads to a host."""
        os.kill(int((self.folder / f"{name}.pid").read_text()), number)


def _toml(value: object) -> str:
    return str(value) if isinstance(value, int | list) else f'"{value}"'


def await_true(condition: Callable[[], object], what: str, *, deadline_s: float = 30.0) -> None:
    """Waits until something holds."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {deadline_s} s for {what}"
        time.sleep(0.02)


def are_gone(pids: Iterable[int]) -> bool:
    """Whether none of these processes runs any more."""
    return not any(_runs(pid) for pid in pids)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
