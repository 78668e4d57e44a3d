# SPDX-License-Identifier: Apache-2.0
"""A launcher of somebody else's (mpirun, srun) as a process of this machine, which ends with us."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING

from gangline.engines.local import child_command
from gangline.engines.logtail import read_tail
from gangline.engines.result import WorkerResult
from gangline.files.plainfile import open_plain
from gangline.spec.enclosure import OPEN
from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_GRACE_S = 5.0
"""How long it may take to end when its agents have ended, and again when it is asked to."""
_TAIL_BYTES = 4096
_MAX_LINES = 6


class LauncherProcess:
    """The process, and what it wrote."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        given: bytes | None = None,
    ) -> None:
        """What it writes goes to the end of `log`; `given` goes to its standard input."""
        self._log = log
        self._name = os.path.basename(command[0])
        descriptor = open_plain(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with os.fdopen(descriptor, "ab") as output:
            try:
                self._process = subprocess.Popen(
                    [*child_command(OPEN), *command],
                    stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
                    start_new_session=True,  # Ctrl-C is for us: we end things politely
                )
            except OSError as error:
                raise LaunchError(f"{command[0]} cannot be run: {error.strerror}") from error

        if given is not None and self._process.stdin is not None:
            # It is shorter than a pipe is long; whoever ends before reading it says so in the log.
            with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
                pipe.write(given)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def problem(self) -> str | None:
        """That it has ended, and what it said; None: it runs."""
        code = self._process.poll()
        if code is None:
            return None
        result = WorkerResult.of_returncode(0, code, stopped=False, traceback=None)
        how = "has ended" if code == 0 else f"has ended ({result.reason})"
        lines = [
            one.strip(" -=") for one in read_tail(self._log, limit_bytes=_TAIL_BYTES).splitlines()
        ]
        words = " / ".join([one for one in lines if one][-_MAX_LINES:])
        return f"{self._name} {how}: {words or 'it said nothing'} (see {self._log})"

    def close(self) -> None:
        """Waits for its end, asks for it, and ends it where it does not."""
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None and self._process.poll() is None:
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
                return
