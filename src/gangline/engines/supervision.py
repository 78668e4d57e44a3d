# SPDX-License-Identifier: Apache-2.0
"""Watches over a running job, and decides what the end of one worker means for the others.

The policy is `_should_stop` and `find_cause`, nothing else: a worker that fails ends the job, and
the one that is blamed is the one whose failure is not just the echo of another's.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from typing import TYPE_CHECKING, Protocol

from gangline.engines.result import JobResult, WorkerResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from gangline.engines.local import LocalEngine, WorkerCommand

_POLL_S = 0.02
_ECHO_S = 0.5
"""How long the cause may take to end after the first worker that merely felt it."""
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Watcher(Protocol):
    """Who is told what happens to a job. Called by the thread that supervises; must not block."""

    def tick(self) -> None:
        """Some hundredths of a second have passed."""

    def worker_ended(self, result: WorkerResult) -> None:
        """A worker has ended."""


class SilentWatcher:
    """Tells nobody."""

    def tick(self) -> None:
        """Nothing to do."""

    def worker_ended(self, result: WorkerResult) -> None:
        """Nothing to do."""


class StopRequest:
    """Whether the launcher has been told to end, and by which signal."""

    def __init__(self) -> None:
        self.number: int | None = None

    def receive(self, number: int, frame: FrameType | None) -> None:
        """The signal handler. The first signal is the one that counts."""
        if self.number is None:
            self.number = number


def supervise(
    engine: LocalEngine,
    *,
    watcher: Watcher,
    keeps_going: bool = False,
    replace: Callable[[WorkerResult], WorkerCommand | None] = lambda result: None,
) -> JobResult:
    """Starts an engine's workers and sees them to their end.

    Workers that were killed do not end the job; those that end with an error do, unless it
    `keeps_going`. While others run, `replace` says what is started in the place of who ended.
    """
    started_s = time.monotonic()
    told: set[int] = set()
    with stop_signals() as request, engine:
        engine.start()
        while engine.running and request.number is None:
            ended = engine.poll()
            _tell(watcher, engine.results, told)
            for result in ended if engine.running else ():
                command = replace(result)
                if command is not None:
                    engine.add(command)
            if _should_stop(engine.results, keeps_going=keeps_going):
                _await_cause(engine)
                break
            watcher.tick()
            time.sleep(_POLL_S)
        engine.stop()
        _tell(watcher, engine.results, told)
        watcher.tick()
        wall_s = time.monotonic() - started_s
        return _conclude(engine.results, request, wall_s, keeps_going=keeps_going)


@contextlib.contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Notes the signals that ask a launcher to end, instead of dying from them.

    Only the main thread may handle signals; elsewhere nothing is changed.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.receive) for number in _STOP_SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def find_cause(results: Sequence[WorkerResult]) -> WorkerResult | None:
    """The worker that made the job fail, of those that ended: not an echo, if there is another."""
    failed = [result for result in results if result.has_failed]
    causes = [result for result in failed if not _is_echo(result)]
    return next(iter(causes or failed), None)


def _should_stop(results: Sequence[WorkerResult], *, keeps_going: bool) -> bool:
    """The others go on without a worker that was killed; an error in the script is everybody's."""
    return any(result.has_failed and not _is_survivable(result, keeps_going) for result in results)


def _is_survivable(result: WorkerResult, keeps_going: bool) -> bool:
    is_out = result.was_left_behind or result.was_put_out or result.was_refused
    return result.signal is not None or result.ran_out_of_memory or is_out or keeps_going


def _has_survivor(results: Sequence[WorkerResult]) -> bool:
    """Whether a worker saw the job to its end."""
    return any(result.exit_code == 0 and not result.stopped for result in results)


def _is_echo(result: WorkerResult) -> bool:
    """Whether a worker failed only because it lost the others in an exchange."""
    return result.traceback is not None and "errors.Exchange" in result.reason


def _await_cause(engine: LocalEngine) -> None:
    deadline = time.monotonic() + _ECHO_S
    while time.monotonic() < deadline and engine.running:
        cause = find_cause(engine.results)
        if cause is not None and not _is_echo(cause):
            return
        engine.poll()
        time.sleep(_POLL_S)


def _tell(watcher: Watcher, results: Sequence[WorkerResult], told: set[int]) -> None:
    for result in results:
        if result.worker not in told:
            told.add(result.worker)
            watcher.worker_ended(result)


def _conclude(
    results: tuple[WorkerResult, ...], request: StopRequest, wall_s: float, *, keeps_going: bool
) -> JobResult:
    cause = find_cause(results)
    is_lost = _should_stop(results, keeps_going=keeps_going) or not _has_survivor(results)
    if request.number is not None:
        status, reason = "interrupted", f"the launcher got {signal.Signals(request.number).name}"
    elif cause is not None and is_lost:
        status, reason = "failed", f"worker {cause.worker}: {cause.reason}"
    elif cause is not None:
        cause = None
        lost = ", ".join(str(result.worker) for result in results if result.has_failed)
        status, reason = "done", f"done without worker {lost}"
    else:
        status, reason = "done", "all workers ended"
    return JobResult(
        status=status,
        reason=reason,
        wall_s=wall_s,
        workers=results,
        cause=cause,
        interrupted_by=request.number,
    )
