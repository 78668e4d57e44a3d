# SPDX-License-Identifier: Apache-2.0
"""Asks all shards at the same time: a thread for each."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.paramserver.service.link import END_S
from gangline.paramserver.service.messages import (
    Answer,
    OnTensor,
    Pushing,
    PushingEarly,
    Refused,
    Request,
    Values,
)
from gangline.paramserver.service.pieces import PiecesMissing
from gangline.paramserver.service.pushes import copied
from gangline.spec.errors import (
    ExchangeAborted,
    ExchangeError,
    GanglineError,
    GradientError,
    MismatchError,
    ServerLost,
)

if TYPE_CHECKING:
    from gangline.paramserver.service.link import Asks
    from gangline.paramserver.service.server import ServiceHost


_Job = tuple[Request | Callable[[], Request], Callable[[], bool], OnTensor | None, Future[Answer]]


class Lane:
    """The thread that asks one shard."""

    def __init__(self, shard: int, asks: Asks) -> None:
        self.asks = asks
        self._jobs: queue.SimpleQueue[_Job | None]
        self._jobs = queue.SimpleQueue()
        self._ending = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=f"gangline-ask-{shard}", daemon=True)
        self._thread.start()

    def ask(
        self,
        request: Request | Callable[[], Request],
        is_wanted: Callable[[], bool],
        on_tensor: OnTensor | None = None,
    ) -> Future[Answer]:
        """Begins to ask, after all that was asked before; a request may be made when its turn comes."""
        future: Future[Answer] = Future()
        with self._ending:
            if self._is_closed:
                future.set_exception(ExchangeAborted("this client is closed"))
            else:
                self._jobs.put((request, is_wanted, on_tensor, future))
        return future

    def close(self) -> None:
        """Breaks off what is under way, and ends the thread."""
        with self._ending:
            self._is_closed = True
            self._jobs.put(None)
        self.asks.close()
        self._thread.join(END_S)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            request, is_wanted, on_tensor, future = job
            try:
                made = request() if callable(request) else request
                future.set_result(self.asks.ask(made, is_wanted=is_wanted, on_tensor=on_tensor))
            except BaseException as error:
                future.set_exception(error)


class Near:
    """The short way to a shard that this process holds."""

    def __init__(self, host: ServiceHost, shard: int) -> None:
        self._host, self._shard = host, shard
        self._breaks = 0

    def ask(
        self,
        request: Request,
        *,
        is_wanted: Callable[[], bool],
        on_tensor: OnTensor | None = None,
    ) -> Answer:
        """As over a connection, but for what is pushed, which the caller goes on to change."""
        if not is_wanted():
            raise ExchangeAborted(f"what shard {self._shard} was asked for was broken off")
        if isinstance(request, Pushing):
            gradients = [copied(gradient) for gradient in request.gradients]
            request = msgspec.structs.replace(request, gradients=gradients)
        elif isinstance(request, PushingEarly):
            pieces = {index: copied(one) for index, one in request.gradients.items()}
            request = msgspec.structs.replace(request, gradients=pieces)
        breaks = self._breaks
        answer = self._host.answer(
            self._shard, request, is_wanted=lambda: self._breaks == breaks and is_wanted()
        )
        if isinstance(answer, Refused) and not is_wanted():
            raise ExchangeAborted(f"what shard {self._shard} was asked for was broken off")
        if on_tensor is not None and isinstance(answer, Values):
            for number, value in enumerate(answer.values):
                on_tensor(number, value)
        return answer

    def condemn(self) -> None:
        """What is under way is not wanted any more."""
        self._breaks += 1

    def break_off(self) -> None:
        """It notices, where it waits."""
        self._host.wake(self._shard)

    def close(self) -> None:
        """Breaks off; the shard itself stays."""
        self.condemn()
        self.break_off()


def ask_all(
    asked: dict[int, tuple[Lane, Request | Callable[[], Request]]],
    *,
    is_wanted: Callable[[], bool],
    on_tensor: Callable[[int], OnTensor | None] = lambda shard: None,
) -> dict[int, Any]:
    """The answers of these shards; where one has none, the error to act on first."""
    futures = {
        shard: lane.ask(request, is_wanted, on_tensor(shard))
        for shard, (lane, request) in asked.items()
    }
    wait(futures.values())
    errors = {
        shard: future.exception() or _error_of(shard, future.result())
        for shard, future in futures.items()
    }
    found = [error for error in errors.values() if error is not None]
    if found:
        raise min(found, key=_urgency)
    return {shard: future.result() for shard, future in futures.items()}


def _error_of(shard: int, answer: Answer) -> GanglineError | None:
    """What a refusal is for the caller."""
    if not isinstance(answer, Refused):
        return None
    reason = f"shard {shard}: {answer.reason}"
    if answer.kind == "gradient":
        return GradientError(reason)
    if answer.kind == "missing":
        return PiecesMissing(reason)
    if answer.kind == "mismatch":
        return MismatchError(reason)
    if answer.kind == "lost":
        return ServerLost(shard, answer.reason)
    return ExchangeError(f"who serves shard {shard} failed: {answer.reason}")


def _urgency(error: BaseException) -> int:
    """Who asked for an abort wants that; what is wrong with a request is so on all servers."""
    kinds = (ExchangeAborted, GradientError, MismatchError, ServerLost)
    return next((place for place, kind in enumerate(kinds) if isinstance(error, kind)), len(kinds))
