# SPDX-License-Identifier: Apache-2.0
"""Workers that are processes: each has a pipe, over which it is told its portions and the model.

The data and the functions lie in one file that all processes map, so that they are in memory once
(torch tensors are copied).
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from gangline.paramserver.functional.computing import Job, Outcome
    from gangline.paramserver.functional.leaves import Leaves
    from gangline.paramserver.functional.ledger import Portion

_START_S = 120.0
"""How long a process may take to start, with all that it imports."""
_ALIGNED = 64


class WorkerLost(Exception):
    """A worker's process is gone, for the reason that the text gives."""


class Remote:
    """The process of one worker, as the server's side sees it."""

    def __init__(self, worker: int, job: Path, *, patience_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._patience_s = patience_s
        self._given_up_after: float | None = None
        self._process = context.Process(
            target=serve, args=(theirs, worker, str(job)), name=f"paramserv-{worker}", daemon=True
        )
        self._process.start()
        theirs.close()

    def await_ready(self) -> None:
        """Returns when the process has read the job."""
        self._answer(_START_S, None)

    def compute(self, worker: int, portion: Portion, model: Leaves) -> Outcome:
        """As `Job.compute`, over there. Raises WorkerLost if the process ends, or takes too long."""
        limit_s = self._patience_s * len(portion.batches)
        content = pickle.dumps((portion, model), protocol=5)
        outcome, error, cause = pickle.loads(self._answer(limit_s, content))
        if error is not None:
            raise error from _unpickled(cause)
        found: Outcome = outcome
        return found

    def end(self) -> None:
        """The process is gone when this returns."""
        self._pipe.close()
        self._process.kill()
        self._process.join()

    def _answer(self, limit_s: float, question: bytes | None) -> bytes:
        bounded_s = min(limit_s, threading.TIMEOUT_MAX)
        watchdog = threading.Timer(bounded_s, self._give_up, args=(limit_s,))
        watchdog.daemon = True
        watchdog.start()
        try:
            if question is not None:
                self._pipe.send_bytes(question)
            return self._pipe.recv_bytes()
        except (EOFError, OSError) as error:
            raise WorkerLost(self._reason()) from error
        finally:
            watchdog.cancel()

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


def write_job(job: Job) -> Path:
    """A file that has the job, with its arrays as they lie in memory."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        head = pickle.dumps(job, protocol=5, buffer_callback=buffers.append)
    except Exception as error:  # a pickled object may raise whatever it likes
        raise UsageError(
            f"where='processes' sends the functions, hyperparameters and data to other processes, and "
            f"these cannot be sent: {error}; define functions at the top level of a module, or use "
            f"where='threads'"
        ) from error
    views = [buffer.raw() for buffer in buffers]
    places, end = [], 0
    for view in views:
        start = -(-end // _ALIGNED) * _ALIGNED
        places.append((start, start + view.nbytes))
        end = start + view.nbytes
    descriptor, name = tempfile.mkstemp(prefix="gangline-paramserv-")
    with os.fdopen(descriptor, "wb") as file:
        for (start, _), view in zip(places, views, strict=True):
            file.seek(start)
            file.write(view)
        file.seek(end)
        file.write(tail := pickle.dumps((head, places), protocol=5))
        file.write(len(tail).to_bytes(8, "little"))
    return Path(name)


def read_job(path: str) -> Job:
    """The job, whose arrays are the file's pages: changing them changes a copy."""
    with Path(path).open("rb") as file:
        pages = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    length = int.from_bytes(pages[-8:], "little")
    head, places = pickle.loads(pages[-8 - length : -8])
    job: Job = pickle.loads(head, buffers=[pages[start:end] for start, end in places])
    return job


def serve(pipe: Connection, worker: int, path: str) -> None:
    """The whole life of a worker's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    job = read_job(path)
    try:
        pipe.send_bytes(b"ready")
        while True:
            portion, model = pickle.loads(pipe.recv_bytes())
            pipe.send_bytes(_computed(job, worker, portion, model))
    except (EOFError, OSError):
        return  # the parent is done with us


def _computed(job: Job, worker: int, portion: Portion, model: Leaves) -> bytes:
    try:
        return pickle.dumps((job.compute(worker, portion, model), None, None), protocol=5)
    except Exception as error:
        return pickle.dumps((None, error, _pickled(error.__cause__)), protocol=5)


def _pickled(cause: BaseException | None) -> bytes | None:
    try:
        return pickle.dumps(cause)
    except Exception:  # the error's own text names it
        return None


def _unpickled(cause: bytes | None) -> Any:
    try:
        return None if cause is None else pickle.loads(cause)
    except Exception:  # the error's own text names it
        return None


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
