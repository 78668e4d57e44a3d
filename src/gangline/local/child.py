# SPDX-License-Identifier: Apache-2.0
"""A process of our own that answers questions over a pipe, and that may be killed or hang."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
import warnings
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_START_S = 120.0
"""How long a process may take to start, with all that it imports."""
_LOOK_S = 0.05
"""How often who waits for a process to start looks whether it is still needed."""
_READY = b"ready"
_starting = threading.Lock()
"""A process that is forked meanwhile would hold the pipes of the one that is just being started."""


def _forget_starting() -> None:
    """In a fork: whoever held the lock is not there, and would never give it back."""
    global _starting
    _starting = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_starting)


class WorkerLost(Exception):
    """A worker's process is gone, for the reason that the text gives."""


class Child:
    """A process, as its parent sees it. One thread asks; `serve_parent` is the other end."""

    def __init__(
        self, target: Callable[..., None], args: tuple[Any, ...], *, name: str, start: str = "spawn"
    ) -> None:
        """Calls `target(pipe, *args)` in a process. `start`: "spawn", or "fork" for any function.

        Raises UsageError in a process that may not start others.
        """
        if multiprocessing.current_process().daemon:
            raise UsageError(
                "this process was started by another one to work for it (as those of where='processes' "
                "and of a DataLoader are), and cannot start processes of its own: use where='threads' "
                "in it"
            )
        context = multiprocessing.get_context(start)
        self._given_up_after: float | None = None
        with _starting, warnings.catch_warnings():
            # Said of a fork in a process with threads. The child touches nothing but its work.
            warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
            self._pipe, theirs = context.Pipe()
            self._process: Any = context.Process(  # type: ignore[attr-defined]
                target=target, args=(theirs, *args), name=name, daemon=True
            )
            self._process.start()
            theirs.close()

    def await_ready(self, is_needless: Callable[[], bool] = lambda: False) -> bool:
        """Whether the process has begun to serve; False: nobody needs it any more, and it may hang.

        Raises WorkerLost if it ends, or takes too long.
        """
        until = time.monotonic() + _START_S
        try:
            while not self._pipe.poll(_LOOK_S):
                if is_needless():
                    return False
                if time.monotonic() > until:
                    self._give_up(_START_S)
            self._pipe.recv_bytes()
        except (EOFError, OSError) as error:
            raise WorkerLost(self._reason()) from error
        return True

    def ask(self, question: bytes, *, limit_s: float) -> bytes:
        """The answer. Raises WorkerLost if the process ends, or takes too long."""
        watchdog = self._watch(limit_s)
        try:
            self._pipe.send_bytes(question)
            return self._pipe.recv_bytes()
        except (EOFError, OSError) as error:
            raise WorkerLost(self._reason()) from error
        finally:
            if watchdog is not None:
                watchdog.cancel()

    def end(self) -> None:
        """The process is gone when this returns."""
        self._pipe.close()
        self._process.kill()
        self._process.join()

    def _watch(self, limit_s: float) -> threading.Timer | None:
        if limit_s == math.inf:
            return None
        bounded_s = min(limit_s, threading.TIMEOUT_MAX)
        watchdog = threading.Timer(bounded_s, self._give_up, args=(limit_s,))
        watchdog.daemon = True
        watchdog.start()
        return watchdog

    def _give_up(self, after_s: float) -> None:
        self._given_up_after = after_s
        self._process.kill()  # so that the pipe ends, whatever its other end does

    def _reason(self) -> str:
        if self._given_up_after is not None:
            return f"given up after {self._given_up_after:g} s without an answer"
        self._process.join(timeout=5)
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}; what it printed says why"


def live_with_parent() -> None:
    """What a child's process does first: Ctrl-C is for the parent, and it ends when that does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def serve_parent(pipe: Connection, answer: Callable[[bytes], bytes]) -> None:
    """Answers questions until the parent is done with this process."""
    try:
        pipe.send_bytes(_READY)
        while True:
            pipe.send_bytes(answer(pipe.recv_bytes()))
    except (EOFError, OSError):
        return


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
