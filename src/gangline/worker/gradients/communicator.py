# SPDX-License-Identifier: Apache-2.0
"""Who calls the group: one thread at a time, so that exchanges keep one order."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from gangline.spec.errors import ExchangeAborted

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.collectives import Group

T = TypeVar("T")


class Communicator:
    """Runs exchanges on a thread of its own, one after the other, while the backward pass goes on.

    After the first failure every later exchange fails with the same error: the members no longer
    agree on what comes next, so nothing may be sent any more.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._last: Future[Any] | None = None
        self._since_s: float | None = None

    @property
    def waiting_s(self) -> float:
        """How long the present exchange has taken so far; 0 where there is none."""
        since_s = self._since_s
        return 0.0 if since_s is None else time.perf_counter() - since_s

    def make(self, make_group: Callable[[], Group]) -> None:
        """Makes another group and goes on with it; to wait for its members is an exchange, too."""
        self._since_s = time.perf_counter()
        try:
            self.renew(make_group())
        finally:
            self._since_s = None

    def submit(self, exchange: Callable[[Group], T]) -> Future[T]:
        """Queues an exchange; the future brings its result or its error."""
        future: Future[T] = Future()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gangline-comm", daemon=True)
            self._thread.start()
        self._jobs.put(lambda: self._perform(exchange, future))
        self._last = future
        return future

    def finish(self, exchange: Callable[[Group], T]) -> Future[T]:
        """An exchange that will be waited for at once.

        Where nothing is under way it is made by the calling thread: two changes of thread cost more
        than a small exchange.
        """
        if self._last is not None and not self._last.done():
            return self.submit(exchange)
        future: Future[T] = Future()
        self._perform(exchange, future)
        return future

    def call(self, exchange: Callable[[Group], T]) -> T:
        """Makes an exchange and waits for it."""
        return self.finish(exchange).result()

    def renew(self, group: Group) -> None:
        """Goes on with another group; what is still queued for the old one fails."""
        self._stop(ExchangeAborted("the group was left"))
        self._failure = None
        self._last = None
        self.group = group

    def close(self) -> None:
        """Breaks off what is under way, ends the thread and closes the group."""
        self._stop(ExchangeAborted("the session was closed"))

    def _stop(self, reason: ExchangeAborted) -> None:
        self._failure = self._failure or reason
        self.group.abort()
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        self.group.close()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _perform(self, exchange: Callable[[Group], T], future: Future[T]) -> None:
        if self._failure is not None:
            future.set_exception(self._failure)
            return
        self._since_s = time.perf_counter()
        try:
            result = exchange(self.group)
        except BaseException as error:
            self._since_s = None
            self._failure = error
            future.set_exception(error)
        else:
            self._since_s = None
            future.set_result(result)
