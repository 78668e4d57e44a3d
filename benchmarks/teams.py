# SPDX-License-Identifier: Apache-2.0
"""Teams of worker processes that a benchmark starts, asks, and always gets rid of.

    with Team([sys.executable, "worker.py"], environments=[{"RANK": "0"}, {"RANK": "1"}]) as team:
        answers = team.ask({"steps": 20}, timeout_s=60)

Each worker calls `serve(answer)`, where `answer` maps a request to a reply; both are JSON. Between
requests a worker sleeps, so several teams can be alive and take turns on the same cores. A worker
that dies, a reply that is no JSON or a time that ran out ends the team with a `TeamError`, which
shows the end of what the worker wrote to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

STDERR_TAIL = 2000
CLOSE_TIMEOUT_S = 5.0
LOOK_S = 1.0


class TeamError(RuntimeError):
    """A worker of a team died, did not answer in time, or did not answer in JSON."""


class Team:
    """Worker processes that run the same command in different environments."""

    def __init__(
        self, command: Sequence[str], *, environments: Sequence[Mapping[str, str]]
    ) -> None:
        self._children: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []
        self._received = [b"" for _ in environments]
        try:
            for environment in environments:
                self._start(command, environment)
        except BaseException:
            self.close()
            raise

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._logs.append(log)
        child = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        self._children.append(child)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers, in order."""
        return [child.pid for child in self._children]

    def ask(
        self,
        request: Mapping[str, Any],
        *,
        timeout_s: float,
        find_hindrance: Callable[[], str | None] = lambda: None,
    ) -> list[Any]:
        """Sends one request to every worker and returns their replies, in order.

        While it waits it asks, every second, why a reply will never come.
        """
        deadline = time.monotonic() + timeout_s
        line = json.dumps(dict(request)).encode() + b"\n"
        try:
            for worker, child in enumerate(self._children):
                assert child.stdin is not None
                try:
                    child.stdin.write(line)
                    child.stdin.flush()
                except BrokenPipeError:
                    raise self._death(worker) from None
            return self._collect(deadline, timeout_s=timeout_s, find_hindrance=find_hindrance)
        except BaseException:
            self.close(timeout_s=0)
            raise

    def _collect(
        self, deadline: float, *, timeout_s: float, find_hindrance: Callable[[], str | None]
    ) -> list[Any]:
        missing = {worker for worker, got in enumerate(self._received) if b"\n" not in got}
        with selectors.DefaultSelector() as selector:
            for worker in missing:
                stdout = self._children[worker].stdout
                assert stdout is not None
                selector.register(stdout, selectors.EVENT_READ, worker)
            while missing:
                left_s = deadline - time.monotonic()
                ready = selector.select(min(max(0.0, left_s), LOOK_S))
                hindrance = None if ready else find_hindrance()
                if hindrance is not None:
                    raise TeamError(hindrance)
                if not ready and left_s <= LOOK_S:
                    names = ", ".join(str(worker) for worker in sorted(missing))
                    raise TeamError(
                        f"no answer within {timeout_s:g} s from worker(s) {names} of "
                        f"{len(self._children)}{self._tail(min(missing))}"
                    )
                for key, _ in ready:
                    self._receive(key.data, key.fd)
                    if b"\n" in self._received[key.data]:
                        missing.discard(key.data)
                        selector.unregister(key.fileobj)
        return [self._reply(worker) for worker in range(len(self._children))]

    def _receive(self, worker: int, descriptor: int) -> None:
        part = os.read(descriptor, 1 << 16)
        if not part:
            raise self._death(worker)
        self._received[worker] += part

    def _reply(self, worker: int) -> Any:
        line, _, self._received[worker] = self._received[worker].partition(b"\n")
        try:
            return json.loads(line)
        except ValueError as error:
            raise TeamError(
                f"worker {worker} answered {line[:200]!r}, which is not JSON; does it call serve()?"
            ) from error

    def _death(self, worker: int) -> TeamError:
        child = self._children[worker]
        has_ended = wait(child, deadline=time.monotonic() + CLOSE_TIMEOUT_S)
        code = end(child)
        how = f"ended with code {code}" if has_ended else "closed its output"
        return TeamError(
            f"worker {worker} of {len(self._children)} {how} before it answered{self._tail(worker)}"
        )

    def _tail(self, worker: int) -> str:
        log = self._logs[worker]
        log.seek(0)
        text = log.read().decode(errors="replace").strip()
        return f"; its last words:\n{text[-STDERR_TAIL:]}" if text else ""

    def close(self, *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Ends all workers: closes their input, waits, kills what is left, children included."""
        for child in self._children:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
        deadline = time.monotonic() + timeout_s
        for child in self._children:
            wait(child, deadline=deadline)
            end(child)
            assert child.stdout is not None
            child.stdout.close()
        for log in self._logs:
            log.close()
        self._children, self._logs = [], []

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def wait(child: subprocess.Popen[bytes], *, deadline: float) -> bool:
    """Waits for the end of a worker, without reaping it; whether it ended before the deadline."""
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while child.returncode is None and os.waitid(os.P_PID, child.pid, options) is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.005)
    return True


def end(child: subprocess.Popen[bytes]) -> int:
    """Kills what is left of a worker's session, reaps the worker, and returns its exit code."""
    # Before it is reaped, as its number could be another's afterwards; and also where it has ended,
    # as its session may hold data-loader processes.
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def run_team(
    command: Sequence[str],
    *,
    environments: Sequence[Mapping[str, str]],
    request: Mapping[str, Any] | None = None,
    timeout_s: float = 120.0,
) -> list[Any]:
    """Starts a team for a single request, and ends it."""
    with Team(command, environments=environments) as team:
        return team.ask(request or {}, timeout_s=timeout_s)


def serve(answer: Callable[[dict[str, Any]], Any]) -> None:
    """The worker's side: answers requests until the benchmark closes the input."""
    # What libraries print must not end up among the replies.
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(2, 1)
        for line in sys.stdin:
            json.dump(answer(json.loads(line)), replies)
            replies.write("\n")
            replies.flush()
