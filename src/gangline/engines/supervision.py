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

from gangline.engines.ending.departing import Departing
from gangline.engines.ending.job_end import JobEnd
from gangline.engines.result import JobResult, WorkerResult
from gangline.spec.config import SurvivalConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from gangline.engines.beyond import Beyond
    from gangline.engines.engine import Engine
    from gangline.engines.local import WorkerCommand

_POLL_S = 0.02
_ECHO_S = 0.5
"""How long the cause may take to end after the first worker that merely felt it."""
_PLAIN = SurvivalConfig()
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
        self.count = 0
        """How many signals have come."""
        self.is_term_a_notice = False
        """Whether the first SIGTERM only says that this machine is about to end."""
        self.is_noticed = False

    def receive(self, number: int, frame: FrameType | None) -> None:
        """The signal handler. The first signal is the one that counts; a second one means: now."""
        self.count += 1
        if number == signal.SIGTERM and self.is_term_a_notice and not self.is_noticed:
            self.is_noticed = True
            return
        self.is_urgent = self.number is not None
        if self.number is None:
            self.number = number


def supervise(
    engine: Engine,
    *,
    watcher: Watcher,
    beyond: Beyond,
    survival: SurvivalConfig = _PLAIN,
    replace: Callable[[WorkerResult], WorkerCommand | None] = lambda result: None,
) -> JobResult:
    """Starts an engine's workers and sees their job to its end, also if others finish it.

    Workers that were killed do not end the job; those that end with an error do, unless it is to
    `keep_going`. While others run, `replace` says what is started in the place of who ended.
    """
    started_s = time.monotonic()
    with stop_signals() as request, engine:
        engine.start()
        course = _Course(engine, watcher, beyond, survival, request)
        course.see_to_end(replace)
        so_far = course.conclude()
        if so_far.status != "done":
            beyond.dissolve(so_far.reason)
        engine.stop(is_hurried=lambda: request.is_urgent)
        course.tell()
        beyond.await_dissolved()
        watcher.tick()
        whole = course.conclude()
        concluded = msgspec.structs.replace(whole, wall_s=time.monotonic() - started_s)
        count = request.count
        beyond.await_sent(lambda: request.count > count, is_done=whole.status == "done")
        return concluded


class _Course:
    """How a job goes on while its workers run, and what it has come to."""

    def __init__(
        self,
        engine: Engine,
        watcher: Watcher,
        beyond: Beyond,
        survival: SurvivalConfig,
        request: StopRequest,
    ) -> None:
        self._engine = engine
        self._watcher = watcher
        self._keeps_going = survival.keep_going
        self._request = request
        self._end = JobEnd(engine, watcher, beyond)
        self._departing = Departing(
            survival, engine, watcher=watcher, beyond=beyond, request=request
        )
        self._told: set[int] = set()

    def see_to_end(self, replace: Callable[[WorkerResult], WorkerCommand | None]) -> None:
        """Returns when nobody trains the job any more, or it must be ended."""
        engine, departing = self._engine, self._departing
        with contextlib.closing(departing):
            while self._request.number is None and self._is_on():
                ended = engine.poll()
                self.tell()
                departing.look()
                if engine.running and not departing.reason:
                    _replace(engine, ended, replace)
                if departing.is_over:
                    return
                if _should_stop(engine.results, keeps_going=self._keeps_going):
                    _await_cause(engine)
                    return
                self._end.end_stopped()
                self._watcher.tick()
                time.sleep(_POLL_S)

    def _is_on(self) -> bool:
        return bool(self._engine.running) or self._end.is_awaiting_others()

    def tell(self) -> None:
        """Tells the watcher of workers that have ended, once of each."""
        for result in self._engine.results:
            if result.worker not in self._told:
                self._told.add(result.worker)
                self._watcher.worker_ended(result)

    def conclude(self) -> JobResult:
        """What the job has come to by now."""
        return _conclude(
            self._engine.results,
            self._request,
            self._keeps_going,
            self._end,
            self._departing.reason,
        )


def _replace(
    engine: Engine,
    ended: Sequence[WorkerResult],
    replace: Callable[[WorkerResult], WorkerCommand | None],
) -> None:
    for result in ended:
        command = replace(result)
        if command is not None:
            engine.add(command)


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


def _conclude(
    results: tuple[WorkerResult, ...],
    request: StopRequest,
    keeps_going: bool,
    end: JobEnd,
    departure: str,
) -> JobResult:
    """`departure` says why this machine is about to end; empty: it is not."""
    cause = find_cause(results)
    must_stop = _should_stop(results, keeps_going=keeps_going)
    is_lost = must_stop or not end.is_finished
    if is_lost and end.is_ordered and not must_stop:
        cause = None  # the others went on without it, until an operator ended the job
    number = request.number
    if number is not None:
        status, reason = "interrupted", f"the launcher got {signal.Signals(number).name}"
    elif departure and is_lost and (cause is None or cause.signal == "SIGTERM"):
        number, cause = signal.SIGTERM, None
        status, reason = "interrupted", f"this machine is about to end: {departure}"
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
        interrupted_by=number,
        has_departed=bool(departure),
    )
