# SPDX-License-Identifier: Apache-2.0
"""Starts worker processes on this machine and makes sure that none of them is left behind.

Each worker leads a session of its own, so that a signal to its process group reaches what it
started too. Three things end a worker's group: `stop`, the worker's own end, and the end of the
launcher (see `child.py` and `guard.py`). The kernel ties a worker to the *thread* that started it:
call `start` from a thread that lives as long as the job.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gangline.engines.logtail import last_traceback
from gangline.engines.result import WorkerResult
from gangline.files.plainfile import open_plain
from gangline.spec.enclosure import OPEN, Enclosure
from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

_HERE = Path(__file__).parent
_POLL_S = 0.02
_PYTHON = (sys.executable, "-I", "-S")


class WorkerCommand(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process: what it runs, and where its output goes."""

    worker: int
    arguments: tuple[str, ...]
    """What python is given: a script and its arguments."""
    environment: Mapping[str, str]
    log: Path
    pass_fds: tuple[int, ...] = ()
    enclosure: Enclosure = OPEN
    """What the process is put into."""
    folder: Path | None = None
    """Where it runs; None: where this process does."""


class LocalEngine:
    """The processes of one job on this machine. As a context manager it stops what still runs."""

    def __init__(
        self,
        commands: Sequence[WorkerCommand],
        *,
        grace_s: float = 0.8,
        end_by: signal.Signals = signal.SIGTERM,
    ) -> None:
        self._commands = {command.worker: command for command in commands}
        self._grace_s = grace_s
        self._end_by = end_by
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._pids: dict[int, int] = {}
        self._results: dict[int, WorkerResult] = {}
        self._guard: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def running(self) -> tuple[int, ...]:
        """The workers that have not ended, as of the last `poll`."""
        return tuple(self._running)

    @property
    def results(self) -> tuple[WorkerResult, ...]:
        """The workers that have ended, in worker order."""
        return tuple(self._results[worker] for worker in sorted(self._results))

    def pid(self, worker: int) -> int:
        """The process id of a worker, which is its process group too while it runs."""
        return self._pids[worker]

    def start(self) -> None:
        """Starts all workers; if one cannot be started, none is left."""
        try:
            self._guard = _start_guard()
            for command in self._commands.values():
                self._start_worker(command)
        except OSError as error:
            self.stop()
            raise LaunchError(
                f"could not start the workers: {error}; check that {sys.executable} can be run, "
                "that the run folder can be written, and that there is memory left"
            ) from error
        except BaseException:
            self.stop()
            raise

    def add(self, command: WorkerCommand) -> None:
        """Starts one more worker, or one that has ended again."""
        self._commands[command.worker] = command
        self._results.pop(command.worker, None)
        try:
            self._start_worker(command)
        except OSError as error:
            raise LaunchError(f"could not start a worker again: {error}") from error

    def poll(self) -> list[WorkerResult]:
        """The workers that have ended since the last call. Never blocks."""
        ended = [worker for worker, process in self._running.items() if _has_ended(process.pid)]
        return [self._reap(worker) for worker in ended]

    def kill(self, worker: int, *, note: str | None = None) -> WorkerResult:
        """Kills a running worker and what it started, and waits until it is gone.

        A stopped one, too: it cannot hear anything else. `note` says why, in its result.
        """
        _signal_group(self._running[worker].pid, signal.SIGKILL)
        return self._reap(worker, note=note)

    def is_stopped(self, worker: int) -> bool:
        """Whether a running worker is stopped by a signal, and does nothing until it is woken."""
        flags = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self._running[worker].pid, flags) is not None
        except ChildProcessError:  # it has ended, and was not reaped yet
            return False

    def wait(
        self, timeout_s: float | None = None, *, is_hurried: Callable[[], bool] = lambda: False
    ) -> bool:
        """Waits until all workers have ended, or the time is over; says whether they have."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self.poll()
            if not self._running:
                return True
            if is_hurried() or (deadline is not None and time.monotonic() >= deadline):
                return False
            time.sleep(_POLL_S)

    def stop(self, *, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Ends all workers and what they started: asks first, kills after the grace.

        The grace is over at once where it `is_hurried`.
        """
        self.poll()
        self._stopping = True
        # Not what they started: a data loader whose processes are ended is an error of its own.
        for process in self._running.values():
            os.kill(process.pid, self._end_by)  # it is not reaped yet, so this is still its number
        # A stopped process cannot hear the request.
        self._signal_all(signal.SIGCONT)
        if not self.wait(self._grace_s, is_hurried=is_hurried):
            self._signal_all(signal.SIGKILL)
            self.wait()
        self._end_guard()

    def ask_to_end(self) -> None:
        """Sends SIGTERM to all workers that run, which has them leave their job politely."""
        self.poll()
        for process in self._running.values():
            os.kill(process.pid, signal.SIGTERM)  # it is not reaped yet: this is still its number

    def _start_worker(self, command: WorkerCommand) -> None:
        command.log.parent.mkdir(parents=True, exist_ok=True)
        enclosure = command.enclosure
        descriptors = () if enclosure.namespace is None else (enclosure.namespace,)
        descriptor = open_plain(command.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with os.fdopen(descriptor, "ab") as log:
            process = subprocess.Popen(
                [*child_command(enclosure), sys.executable, *command.arguments],
                cwd=command.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(command.environment),
                start_new_session=True,
                pass_fds=(*command.pass_fds, *descriptors),
            )
        self._running[command.worker] = process
        self._pids[command.worker] = process.pid
        self._tell_guard(f"+{process.pid}")

    def _reap(self, worker: int, *, note: str | None = None) -> WorkerResult:
        process = self._running[worker]
        # As long as its leader is not reaped, the group's number cannot be given to another one.
        _signal_group(process.pid, signal.SIGKILL)
        returncode = process.wait()
        del self._running[worker]
        self._tell_guard(f"-{process.pid}")
        failed = returncode != 0 and not self._stopping and note is None
        result = WorkerResult.of_returncode(
            worker,
            returncode,
            stopped=self._stopping,
            note=note,
            traceback=last_traceback(self._commands[worker].log) if failed else None,
        )
        self._results[worker] = result
        return result

    def _signal_all(self, number: int) -> None:
        for process in self._running.values():
            _signal_group(process.pid, number)

    def _tell_guard(self, line: str) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            # A guard that somebody killed is no reason to end the job.
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.write(f"{line}\n".encode())
                self._guard.stdin.flush()

    def _end_guard(self) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.close()
            self._guard.wait()
        self._guard = None


def child_command(enclosure: Enclosure) -> list[str]:
    """What comes before a program so that it ends with this process, and is put where it shall be."""
    namespace = "-" if enclosure.namespace is None else str(enclosure.namespace)
    group = enclosure.control_group or "-"
    return [*_PYTHON, str(_HERE / "child.py"), str(os.getpid()), namespace, group]


def _start_guard() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*_PYTHON, str(_HERE / "guard.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def _has_ended(pid: int) -> bool:
    """Whether a child has ended, leaving it to be reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
