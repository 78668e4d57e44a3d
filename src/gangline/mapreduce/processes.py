# SPDX-License-Identifier: Apache-2.0
"""Workers that are processes: each is told the first and last row of a chunk, and answers its result.

A function that can be imported runs in processes that start anew, and that map the inputs from one
file. Lambdas and closures cannot be sent: they run in forks of this process, which have the inputs.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import threading
from typing import TYPE_CHECKING, Any

from gangline.local.answers import answered, outcome_of
from gangline.local.child import Child, WorkerLost, live_with_parent, serve_parent
from gangline.local.mapped_file import write_mapped
from gangline.mapreduce.work import name_of, rows_text
from gangline.spec.errors import FunctionError, GanglineError, UsageError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from gangline.local.mapped_file import MappedFile
    from gangline.mapreduce.arguments import Settings
    from gangline.mapreduce.dispatch import Dispatch
    from gangline.mapreduce.work import Work

_IMPORTABLE = (
    "the function must be importable, and a script's own part begin with "
    "`if __name__ == '__main__':`"
)


class Remote:
    """The process of one worker, as its thread sees it."""

    def __init__(self, child: Child, *, patience_s: float) -> None:
        self._child = child
        self._patience_s = patience_s

    def do(self, start: int, stop: int) -> tuple[Any, float]:
        """As `Work.do`, over there. Raises WorkerLost if the process ends, or takes too long."""
        question = pickle.dumps((start, stop))
        answer = self._child.ask(question, limit_s=self._patience_s)
        try:
            outcome: tuple[Any, float] = outcome_of(answer)
            return outcome
        except GanglineError:
            raise
        except Exception as error:
            raise FunctionError(
                f"the result for {rows_text(start, stop)} cannot be sent from its process: {error}"
            ) from error


class Processes:
    """A process for each worker, and others in place of those that are lost."""

    def __init__(self, settings: Settings, work: Work) -> None:
        self._settings = settings
        self._work = work
        self._is_new = _is_importable(work.function)
        self._file = _written(work) if self._is_new else None
        self._children: list[Child] = []
        self._lock = threading.Lock()
        self._is_over = False

    def start(self) -> None:
        """Begins to start all of them, at the same time."""
        for worker in range(self._settings.workers):
            self._begin(worker)

    def ready(self, worker: int, dispatch: Dispatch) -> Remote | None:
        """A worker's process when it is ready; None: it was lost before, or the others did all rows."""
        child = self._children[worker]
        try:
            if not child.await_ready(lambda: dispatch.is_over):
                return None
        except WorkerLost as lost:
            dispatch.lose(worker, None, f"before it was ready, {lost}; {_IMPORTABLE}")
            child.end()
            return None
        return Remote(child, patience_s=self._settings.patience_s)

    def replace(self, worker: int, dispatch: Dispatch) -> Remote | None:
        """Another one for a worker whose process is gone."""
        with self._lock:
            if self._is_over:
                return None
            self._children[worker].end()
            self._begin(worker)
        return self.ready(worker, dispatch)

    def end(self) -> None:
        """All are gone when this returns, and what they read."""
        with self._lock:
            self._is_over = True
            for child in self._children:
                child.end()
        if self._file is not None:
            self._file.close()

    def _begin(self, worker: int) -> None:
        pinned = self._settings.processors
        processor = None if pinned is None else pinned[worker]
        target, given = (_serve_file, self._file) if self._is_new else (_serve_fork, self._work)
        start = "spawn" if self._is_new else "fork"
        arguments = (given, processor, self._settings.devices[worker])
        child = Child(target, arguments, name=f"gangline-map-{worker}", start=start)
        self._children[worker : worker + 1] = [child]


def pin(processor: int | None) -> None:
    """From here on the calling thread runs on this processor alone."""
    if processor is not None:
        os.sched_setaffinity(0, {processor})


def _written(work: Work) -> MappedFile:
    try:
        return write_mapped(work)
    except Exception as error:  # a pickled object may raise whatever it likes
        raise UsageError(
            f"where='processes' sends the arguments to other processes, and these cannot be sent: "
            f"{error}; give others, or use where='threads'"
        ) from error


def _is_importable(function: Any) -> bool:
    """Whether another process finds the function by its name."""
    module, name = getattr(function, "__module__", None), name_of(function)
    if module is None or getattr(function, "__qualname__", None) is None:
        return _is_sendable(function)  # functools.partial, an object with __call__
    main = sys.modules.get("__main__")
    if module == "__main__" and not hasattr(main, "__file__"):
        return _forkable(function)
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return _forkable(function)
    return found is function or _is_sendable(function)


def _is_sendable(function: Any) -> bool:
    try:
        pickle.dumps(function)
    except Exception:  # it may raise whatever it likes
        return _forkable(function)
    return True


def _forkable(function: Any) -> bool:
    """False: it is for a fork. Raises UsageError where there are none."""
    if not hasattr(os, "fork"):
        raise UsageError(
            f"{name_of(function)} cannot be imported, and this system cannot fork: define it at the "
            f"top level of a module, or use where='threads'"
        )
    return False


def _serve_file(pipe: Connection, file: MappedFile, processor: int | None, device: str) -> None:
    live_with_parent()
    pin(processor)
    work = file.read()
    file.close()
    _serve(pipe, work, device)


def _serve_fork(pipe: Connection, work: Work, processor: int | None, device: str) -> None:
    live_with_parent()
    pin(processor)
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(
            1
        )  # the threads that it had are not in a fork, and would be waited for
    _serve(pipe, work, device)


def _serve(pipe: Connection, work: Work, device: str) -> None:
    def answer(question: bytes) -> bytes:
        start, stop = pickle.loads(question)
        return answered(lambda: work.do(start, stop, device))

    serve_parent(pipe, answer)
