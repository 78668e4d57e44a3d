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
from typing import TYPE_CHECKING, Any

from gangline.local.answers import answered, outcome_of
from gangline.local.child import Child, WorkerLost, live_with_parent, serve_parent
from gangline.local.mapped_file import read_mapped, write_mapped
from gangline.mapreduce.work import name_of, rows_text
from gangline.spec.errors import FunctionError, GanglineError, UsageError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

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

    def do(self, start: int, stop: int) -> Any:
        """As `Work.do`, over there. Raises WorkerLost if the process ends, or takes too long."""
        question = pickle.dumps((start, stop))
        answer = self._child.ask(question, limit_s=self._patience_s)
        try:
            return outcome_of(answer)
        except GanglineError:
            raise
        except Exception as error:
            raise FunctionError(
                f"the result for {rows_text(start, stop)} cannot be sent from its process: {error}"
            ) from error

    def end(self) -> None:
        """The process is gone when this returns."""
        self._child.end()


def start_processes(settings: Settings, work: Work, dispatch: Dispatch) -> list[Remote | None]:
    """A process for each worker; None where it was lost before it was ready."""
    children: list[Child] = []
    is_new = _is_importable(work.function)
    path = _written(work) if is_new else None
    try:
        for worker in range(settings.workers):
            processor = None if settings.processors is None else settings.processors[worker]
            target, given = (_serve_file, str(path)) if is_new else (_serve_fork, work)
            children.append(
                Child(
                    target,
                    (given, processor),
                    name=f"gangline-map-{worker}",
                    start="spawn" if is_new else "fork",
                )
            )
        return [_ready(child, worker, settings, dispatch) for worker, child in enumerate(children)]
    except BaseException:
        for child in children:
            child.end()
        raise
    finally:
        if path is not None:
            path.unlink(missing_ok=True)  # who has mapped it keeps it


def pin(processor: int | None) -> None:
    """From here on the calling thread runs on this processor alone."""
    if processor is not None:
        os.sched_setaffinity(0, {processor})


def _ready(child: Child, worker: int, settings: Settings, dispatch: Dispatch) -> Remote | None:
    try:
        child.await_ready()
    except WorkerLost as lost:
        dispatch.lose(worker, None, f"before it was ready, {lost}; {_IMPORTABLE}")
        child.end()
        return None
    return Remote(child, patience_s=settings.patience_s)


def _written(work: Work) -> Any:
    try:
        return write_mapped(work, name="map")
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


def _serve_file(pipe: Connection, path: str, processor: int | None) -> None:
    live_with_parent()
    pin(processor)
    _serve(pipe, read_mapped(path))


def _serve_fork(pipe: Connection, work: Work, processor: int | None) -> None:
    live_with_parent()
    pin(processor)
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(
            1
        )  # the threads that it had are not in a fork, and would be waited for
    _serve(pipe, work)


def _serve(pipe: Connection, work: Work) -> None:
    def answer(question: bytes) -> bytes:
        start, stop = pickle.loads(question)
        return answered(lambda: work.do(start, stop))

    serve_parent(pipe, answer)
