# SPDX-License-Identifier: Apache-2.0
"""The line to an agent; by ssh, that is a process of this machine, and the agent that it runs there.

ssh is the system's own, so its configuration, agent and jump hosts hold. Nothing secret is in its
arguments, which others can read.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from gangline.engines.logtail import read_tail
from gangline.files.plainfile import open_plain
from gangline.protocol.agents import BEAT_S, SILENCE_S, Beat, Channel, FromAgent
from gangline.spec.errors import LaunchError
from gangline.version import VERSION

if TYPE_CHECKING:
    from pathlib import Path

    import msgspec

    from gangline.spec.machines.hosts import Host

CONNECT_S = 10
"""How long ssh may take to get a connection."""
ANSWER_S = 40.0
"""How long the agent may take to say that it is there: python may have to be read over a network."""
_CLOSE_S = 3.0
_SSH_FAILED = 255
_NOT_FOUND = (126, 127)
_TAIL_BYTES = 4096


class Line:
    """The launcher's end of a line to an agent, however it was made."""

    def __init__(self, channel: Channel[FromAgent]) -> None:
        self._channel = channel
        self._begun_s = self._heard_s = self._beat_s = time.monotonic()
        self._has_answered = False

    @property
    def backlog(self) -> int:
        """How many bytes wait to be sent."""
        return self._channel.backlog

    def say(self, message: msgspec.Struct) -> None:
        """Tells the agent something."""
        self._channel.send(message)

    def listen(self) -> list[FromAgent]:
        """What the agent has said since the last time."""
        now = time.monotonic()
        heard = self._channel.receive()
        if heard:
            self._heard_s, self._has_answered = now, True
        if self._has_answered and now - self._beat_s > BEAT_S:
            self._beat_s = now
            self._channel.send(Beat())
        self._channel.flush()
        return heard

    def problem(self) -> str | None:
        """Why nothing comes over this line any more; None: it is well."""
        now = time.monotonic()
        if self._channel.is_closed:
            return self._why_ended()
        if not self._has_answered and now - self._begun_s > ANSWER_S:
            return f"it gave no answer for {ANSWER_S:g} s{self._last_words()}"
        if self._has_answered and now - self._heard_s > SILENCE_S:
            return f"nothing was heard of it for {SILENCE_S:g} s"
        return None

    def close(self) -> None:
        """Hangs up; the agent ends its workers then, if it has not yet."""
        raise NotImplementedError

    def await_end(self, deadline: float) -> None:
        """Waits until what carries the line has ended; where it hangs, it is cut."""

    def _why_ended(self) -> str:
        return "its connection broke"

    def _last_words(self) -> str:
        return ""


class HostLine(Line):
    """One connection by ssh, from its start to its end."""

    def __init__(self, host: Host, *, log: Path) -> None:
        """What ssh and the agent complain about goes to the end of `log`."""
        self.host = host
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        descriptor = open_plain(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with os.fdopen(descriptor, "ab") as errors:
            self._log_start = errors.tell()
            try:
                self._process = subprocess.Popen(
                    ssh_command(host),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    bufsize=0,
                    start_new_session=True,  # Ctrl-C is for the launcher, which ends things politely
                )
            except OSError as error:
                raise LaunchError(
                    f"ssh cannot be run: {error.strerror}; hosts are reached by the system's ssh: "
                    "install openssh-client"
                ) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        super().__init__(
            Channel(self._process.stdout.fileno(), self._process.stdin.fileno(), FromAgent)
        )

    def close(self) -> None:
        """Hangs up; the agent ends its workers then, if it has not yet."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def await_end(self, deadline: float) -> None:
        """Waits until ssh has ended, and ends it where it does not; a line that hangs is cut."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _why_ended(self) -> str:
        """What ssh's end means, and what to do."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_S)
        host, code, words = self.host, self._process.poll(), self._last_words()
        if "No module named" in words and "gangline" in words:
            return (
                f"{host.python} has no gangline {VERSION} there{words}: install it, as by `ssh "
                f"{host.destination} {host.python} -m pip install gangline=={VERSION}`, or name "
                "another python in the hosts file"
            )
        if code == _SSH_FAILED and not self._has_answered:
            return f"ssh does not reach it{words}: see that `ssh {host.destination} true` works"
        if code in _NOT_FOUND:
            return f"there is no {host.python}{words}: name the python in the hosts file"
        if code == _SSH_FAILED:
            return f"its connection broke{words}"
        how = "was killed" if code is None or code < 0 else f"ended with exit code {code}"
        return f"its ssh connection {how}{words}"

    def _last_words(self) -> str:
        size = self._log.stat().st_size - self._log_start
        text = read_tail(self._log, limit_bytes=min(size, _TAIL_BYTES)) if size > 0 else ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f" ({lines[-1]})" if lines else ""


def ssh_command(host: Host) -> list[str]:
    """How ssh is called: without questions, and giving up on a connection that is dead."""
    options = [
        *("-T", "-x", "-o", "BatchMode=yes"),
        *("-o", f"ConnectTimeout={CONNECT_S}"),
        *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
    ]
    port = [] if host.port is None else ["-p", str(host.port)]
    remote = f"exec {_in_shell(host.python)} -m gangline.engines.agent"
    return ["ssh", *options, *port, "--", host.destination, remote]


def _in_shell(path: str) -> str:
    """A path as a shell takes it; what begins with ~/ is the user's there."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)
