# SPDX-License-Identifier: Apache-2.0
"""Watches over a running job, and decides what the end of one worker means for the others.

A worker that fails ends the job, and the one that is blamed is the one whose failure is not just the
echo of another's. A job is over when nobody trains it any more, whoever started them.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from typing import TYPE_CHECKING, Protocol

import msgspec

from gangline.engines.result import JobResult, WorkerResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from gangline.engines.beyond import Beyond
    from gangline.engines.engine import Engine
    from gangline.engines.local import WorkerCommand

_POLL_S = 0.02
_ECHO_S = 0.5
"""How long the cause may take to end after the first worker that merely felt it."""
STOPPED_GRACE_S = 5.0
"""How long a worker may stay stopped (SIGSTOP) when the job is over but for it."""
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Watcher(Protocol):
    """Who is told what happens to a job. Called by the thread that supervises; must not block."""

    def tick(self) -> None:
        """Some hundredths of a second have passed."""

    def worker_ended(self, result: WorkerResult) -> None:
        """A worker has ended."""

    def begins(self, come: int) -> None:
        """Before anybody trains: so many workers have come by now."""

    def main_is(self, worker: int) -> None:
        """This worker prints and saves from here on."""

    def note(self, what: str, reason: str, **numbers: float) -> None:
        """Something happened that people should know of."""


class SilentWatcher:
    """Tells nobody."""

    def tick(self) -> None:
        """Nothing to do."""

    def worker_ended(self, result: WorkerResult) -> None:
        """Nothing to do."""

    def begins(self, come: int) -> None:
        """Nothing to do."""

    def main_is(self, worker: int) -> None:
        """Nothing to do."""

    def note(self, what: str, reason: str, **numbers: float) -> None:
        """Nothing to do."""


class StopRequest:
    """Whether the launcher has been told to end, by which signal, and whether more than once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.is_urgent = False

    def receive(self, number: int, frame: FrameType | None) -> None:
        """The signal handler. The first signal is the one that counts; a second one means: now."""
        self.is_urgent = self.number is not None
        if self.number is None:
            self.number = number


def supervise(
    engine: Engine,
    *,
    watcher: Watcher,
    beyond: Beyond,
    keeps_going: bool = False,
    replace: Callable[[WorkerResult], WorkerCommand | None] = lambda result: None,
) -> JobResult:
    """Starts an engine's workers and sees their job to its end, also if others finish it.

    Workers that were killed do not end the job; those that end with an error do, unless it
    `keeps_going`. While others run, `replace` says what is started in the place of who ended.
    """
    started_s = time.monotonic()
    told: set[int] = set()
    with stop_signals() as request, engine:
        engine.start()
        end = _End(engine, watcher, beyond)
        while request.number is None and (engine.running or end.is_awaiting_others()):
            ended = engine.poll()
            _tell(watcher, engine.results, told)
            for result in ended if engine.running else ():
                command = replace(result)
                if command is not None:
                    engine.add(command)
            if _should_stop(engine.results, keeps_going=keeps_going):
                _await_cause(engine)
                break
            end.end_stopped()
            watcher.tick()
            time.sleep(_POLL_S)
        so_far = _conclude(engine.results, request, keeps_going, end)
        if so_far.status != "done":
            beyond.dissolve(so_far.reason)
        engine.stop(is_hurried=lambda: request.is_urgent)
        _tell(watcher, engine.results, told)
        beyond.await_dissolved()
        watcher.tick()
        whole = _conclude(engine.results, request, keeps_going, end)
        return msgspec.structs.replace(whole, wall_s=time.monotonic() - started_s)


class _End:
    """Whether the job has come to its end, and who keeps the launcher from ending with it."""

    def __init__(self, engine: Engine, watcher: Watcher, beyond: Beyond) -> None:
        self._engine = engine
        self._watcher = watcher
        self._beyond = beyond
        self._left: dict[int, bool] = {}
        self._stopped_since_s: float | None = None
        self._is_told = False

    @property
    def is_finished(self) -> bool:
        """Whether a worker saw the job to its end."""
        well = [one for one in self._engine.results if one.exit_code == 0 and not one.stopped]
        return self._beyond.is_finished or any(not self._has_left(one.worker) for one in well)

    def is_awaiting_others(self) -> bool:
        """Whether workers that were started elsewhere still train the job."""
        if not self._beyond.is_awaited:
            return False
        if not self._is_told:
            self._is_told = True
            names = ", ".join(str(one) for one in self._beyond.others)
            reason = f"all workers that were started here have ended; worker {names} goes on"
            self._watcher.note("await_others", reason, others=len(self._beyond.others))
        return True

    def end_stopped(self) -> None:
        """Ends workers that stay stopped when the job is over but for them."""
        running = self._engine.running
        is_over = bool(running) and self.is_finished and not self._beyond.is_awaited
        if not is_over or not all(self._engine.is_stopped(worker) for worker in running):
            self._stopped_since_s = None
            return
        now = time.monotonic()
        if self._stopped_since_s is None:
            self._stopped_since_s = now
        if now - self._stopped_since_s < STOPPED_GRACE_S:
            return
        for worker in running:
            stayed = f"stayed stopped for {STOPPED_GRACE_S:g} s when the job was over"
            self._engine.kill(worker, note=f"{stayed}, and was ended")
            self._watcher.note("end_stopped", f"worker {worker} {stayed}: ended", worker=worker)

    def explain(self) -> str:
        """Why the job is not finished, though nobody failed."""
        left = [str(one.worker) for one in self._engine.results if self._has_left(one.worker)]
        who = f"worker {', '.join(left)} left, and " if left else ""
        return f"the job is not trained to its end: {who}{self._beyond.explain()}"

    def _has_left(self, worker: int) -> bool:
        if worker not in self._left:
            self._left[worker] = self._beyond.has_left(worker)
        return self._left[worker]


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
    """The worker that made the job fail, of those that ended: not an echo, if there is another.

    Nor one that the others could go on without, if there is one whose error is everybody's.
    """
    failed = [result for result in results if result.has_failed]
    causes = [result for result in failed if not _is_echo(result)]
    fatal = [result for result in causes if not _is_survivable(result, keeps_going=False)]
    return next(iter(fatal or causes or failed), None)


def _should_stop(results: Sequence[WorkerResult], *, keeps_going: bool) -> bool:
    """The others go on without a worker that was killed; an error in the script is everybody's."""
    return any(result.has_failed and not _is_survivable(result, keeps_going) for result in results)


def _is_survivable(result: WorkerResult, keeps_going: bool) -> bool:
    is_out = result.was_left_behind or result.was_put_out or result.was_refused
    was_taken = result.signal is not None or result.is_lost or result.ran_out_of_memory
    return was_taken or is_out or keeps_going


def _is_echo(result: WorkerResult) -> bool:
    """Whether a worker failed only because it lost the others in an exchange."""
    return result.traceback is not None and "errors.Exchange" in result.reason


def _await_cause(engine: Engine) -> None:
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
    results: tuple[WorkerResult, ...], request: StopRequest, keeps_going: bool, end: _End
) -> JobResult:
    cause = find_cause(results)
    is_lost = _should_stop(results, keeps_going=keeps_going) or not end.is_finished
    if request.number is not None:
        status, reason = "interrupted", f"the launcher got {signal.Signals(request.number).name}"
    elif cause is not None and is_lost:
        status, reason = "failed", f"worker {cause.worker}: {cause.reason}"
    elif is_lost:
        status, reason = "failed", end.explain()
    elif cause is not None:
        cause = None
        lost = [one for one in results if one.has_failed]
        names = ", ".join(
            str(one.worker) if one.note is None else f"{one.worker} ({one.note})" for one in lost
        )
        status, reason = "done", f"done without worker {names}"
    else:
        status, reason = "done", "all workers ended"
    return JobResult(
        status=status,
        reason=reason,
        wall_s=0.0,
        workers=results,
        cause=cause,
        interrupted_by=request.number,
    )
