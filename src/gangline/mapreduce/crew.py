# SPDX-License-Identifier: Apache-2.0
"""The threads of a loop: one for each worker, which computes itself or speaks for a process."""

from __future__ import annotations

import functools
import threading
import time
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from gangline.local.child import WorkerLost
from gangline.mapreduce.dispatch import MAX_LOSSES
from gangline.mapreduce.processes import Processes, Remote, pin
from gangline.mapreduce.result import Failure, Part
from gangline.mapreduce.work import rows_text
from gangline.spec.errors import FunctionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gangline.mapreduce.arguments import Settings
    from gangline.mapreduce.dispatch import Dispatch
    from gangline.mapreduce.work import Work
    from gangline.scheduling import Chunk

    Do = Callable[[int, int], tuple[Any, float]]
    """A chunk's result, and the seconds of the function itself."""

MAX_FAILURES = 100
_END_S = 2.0
"""How long a thread that is in the user's function is waited for when the loop is broken off."""


class Sink(Protocol):
    """Where results go. Each worker calls it in its own thread."""

    def put(self, worker: int, part: Part) -> None:
        """A chunk was done."""


class Tally(msgspec.Struct):
    """What one worker counts; nobody else writes to it."""

    chunks: int = 0
    rows: int = 0
    stolen: int = 0
    busy_s: float = 0.0
    overhead_s: float = 0.0


class Crew:
    """All workers, from when it is entered until it is left, however that comes about."""

    def __init__(self, settings: Settings, work: Work, dispatch: Dispatch, sink: Sink) -> None:
        self._settings = settings
        self._work = work
        self._dispatch = dispatch
        self._sink = sink
        self._threads: list[threading.Thread] = []
        self._processes: Processes | None = None
        self._failing = threading.Lock()
        self._failed_rows: dict[int, int] = {}
        self.tallies = [Tally() for _ in range(settings.workers)]
        self.failures: list[Failure] = []
        self.num_failed = self.num_failed_rows = 0

    def __enter__(self) -> Self:
        try:
            if self._settings.where == "processes":
                self._processes = Processes(self._settings, self._work)
                self._processes.start()
            self._threads = [
                threading.Thread(
                    target=self._live, args=(worker,), name=f"gangline-map-{worker}", daemon=True
                )
                for worker in range(self._settings.workers)
            ]
            for thread in self._threads:
                thread.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def rows_done(self) -> int:
        """How many rows are done, or have failed."""
        return sum(tally.rows for tally in self.tallies)

    def failed_rows(self) -> dict[int, int]:
        """Of each chunk that has failed, the first row and that behind the last."""
        with self._failing:
            return dict(self._failed_rows)

    def wait(self, limit_s: float | None = None) -> bool:
        """Waits until all workers are done, at most so long; whether they are."""
        until = None if limit_s is None else time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _end(self) -> None:
        self._dispatch.stop()
        if self._processes is not None:
            self._processes.end()
        self.wait(_END_S)

    def run_alone(self) -> None:
        """The one worker of a loop works in the thread that calls, which is sooner than another one."""
        self._live(0)

    @property
    def is_alone(self) -> bool:
        """Whether `run_alone` does. A worker that is pinned has a thread of its own."""
        settings = self._settings
        return (
            settings.workers == 1 and settings.where != "processes" and settings.processors is None
        )

    def _live(self, worker: int) -> None:
        """A worker's life, with as many processes as it takes, one after the other."""
        do: Do | None
        if self._processes is not None:
            do = _do_of(self._processes.ready(worker, self._dispatch))
        else:
            if self._settings.processors is not None:
                pin(self._settings.processors[worker])
            do = functools.partial(self._work.do, device=self._settings.devices[worker])
        while do is not None:
            do = self._work_on(worker, do)

    def _work_on(self, worker: int, do: Do) -> Do | None:
        """Takes a chunk, does it, says how long that took, and so on; who goes on if it is lost."""
        chunk: Chunk | None = None
        try:
            tally, clock, put = self.tallies[worker], time.perf_counter, self._sink.put
            is_stolen = self._dispatch.queues.is_stolen
            seconds = overhead_s = 0.0
            asked = clock()
            while (chunk := self._dispatch.next(worker, chunk, seconds, overhead_s)) is not None:
                begun = clock()
                try:
                    value, seconds = do(chunk.start, chunk.stop)
                except FunctionError as error:
                    seconds = clock() - begun
                    self._fail(chunk, error)
                else:
                    put(worker, Part(chunk.start, chunk.stop, value))
                ended = clock()
                overhead_s, asked = ended - asked - seconds, ended
                tally.chunks += 1
                tally.rows += chunk.stop - chunk.start
                tally.stolen += is_stolen(worker, chunk)
                tally.busy_s += seconds
                tally.overhead_s += overhead_s
        except WorkerLost as lost:
            return self._lose(worker, chunk, str(lost))
        except BaseException as error:  # whatever it is, it is raised where the loop was called
            self._dispatch.fail(error)
        return None

    def _lose(self, worker: int, chunk: Chunk | None, why: str) -> Do | None:
        """A process is gone. Somebody does its chunk, unless that is what ends processes.

        Another process takes its place, as long as there is something to do, and not without end.
        """
        is_deadly = chunk is not None and self._dispatch.is_deadly(chunk)
        if chunk is not None and is_deadly:
            rows = rows_text(chunk.start, chunk.stop)
            try:
                self._fail(chunk, FunctionError(f"{rows} ended {MAX_LOSSES} processes: {why}"))
            except FunctionError as error:
                self._dispatch.fail(error)
        if not self._dispatch.lose(worker, chunk, why, is_done=is_deadly):
            return None
        assert self._processes is not None
        return _do_of(self._processes.replace(worker, self._dispatch))

    def _fail(self, chunk: Chunk, error: FunctionError) -> None:
        """A chunk has no result: that ends the loop, or is kept for the user."""
        if not self._settings.collects:
            raise error
        with self._failing:
            self.num_failed += 1
            self.num_failed_rows += chunk.stop - chunk.start
            self._failed_rows[chunk.start] = chunk.stop
            if len(self.failures) < MAX_FAILURES:
                first = self._work.first
                one = Failure(start=first + chunk.start, stop=first + chunk.stop, error=str(error))
                self.failures.append(one)


def _do_of(remote: Remote | None) -> Do | None:
    return None if remote is None else remote.do
