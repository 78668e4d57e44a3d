# SPDX-License-Identifier: Apache-2.0
"""Workers that are the processes of a job: what the one with the model and the others say.

All have the data and the functions. So a portion is named, not sent; what travels is the model, what
a worker has made of it, and how the run ended. Nothing that is read is code.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gangline.local.child import WorkerLost
from gangline.paramserver.functional.computing import Outcome
from gangline.spec import errors
from gangline.spec.errors import ExchangeError, GanglineError, LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.collectives import Group
    from gangline.paramserver.functional.computing import Job
    from gangline.paramserver.functional.leaves import Leaves
    from gangline.paramserver.functional.ledger import Portion
    from gangline.paramserver.functional.result import Trained

_SLACK_BYTES = 1 << 20
_END_S = 30.0
"""How long a process that still computes is waited for when the run has failed."""


class Task(msgspec.Struct, frozen=True, kw_only=True, tag="task"):
    """Compute this portion from this model."""

    epoch: int
    owner: int
    index: int
    model: Any


class Computed(msgspec.Struct, frozen=True, kw_only=True, tag="computed"):
    """What has come of it."""

    leaves: Any


class Raised(msgspec.Struct, frozen=True, kw_only=True, tag="raised"):
    """A function has failed, or the run has: the error by its kind, and its text."""

    kind: str
    text: str


class Over(msgspec.Struct, frozen=True, kw_only=True, tag="over"):
    """The run has ended well: the model, and the rest of the result as msgpack."""

    model: Any
    rest: bytes


class Heard(msgspec.Struct, frozen=True, kw_only=True, tag="heard"):
    """A process knows how the run has ended: the connection may be closed."""


class Peer:
    """One process of the job, as the server sees it. One thread asks at a time."""

    def __init__(self, connect: Callable[[], Group], *, like: Leaves, patience_s: float) -> None:
        self._connect = connect
        self._like = like
        self._patience_s = patience_s
        self._group: Group | None = None
        self._lock = threading.Lock()
        self._given_up_after: float | None = None

    def compute(self, worker: int, portion: Portion, model: Leaves) -> Outcome:
        """As `Job.compute`, over there. Raises WorkerLost if it ends, or takes too long."""
        task = Task(
            epoch=portion.epoch, owner=portion.owner, index=portion.index, model=_tensors(model)
        )
        try:
            with self._lock:
                answer = self._ask(task, Computed | Raised, len(portion.batches))
                if isinstance(answer, Computed):
                    return Outcome(_arrays(answer.leaves, self._like))
        except ExchangeError as error:
            raise WorkerLost(self._reason(error)) from error
        raise _error_of(answer)

    def end(self, how: Over | Raised) -> None:
        """Says how the run has ended, if it is still there to hear it, and ends the connection."""
        is_free = self._lock.acquire(timeout=min(self._patience_s, _END_S))
        try:
            if is_free and self._given_up_after is None:
                self._ask(how, Heard, 1)
        except ExchangeError:  # it is gone
            pass
        finally:
            if self._group is not None:
                with contextlib.suppress(ExchangeError):
                    self._group.abort()
                    self._group.close()

    def _ask(self, message: Any, kind: Any, num_batches: int) -> Any:
        if self._group is None:
            self._group = self._connect()
        limit_s = self._patience_s * num_batches
        bounded_s = min(limit_s, threading.TIMEOUT_MAX)
        watchdog = threading.Timer(bounded_s, self._give_up, args=(limit_s,))
        watchdog.daemon = True
        watchdog.start()
        try:
            _send(self._group, message)
            return _receive(self._group, kind, self._like)
        finally:
            watchdog.cancel()

    def _give_up(self, after_s: float) -> None:
        assert self._group is not None
        self._given_up_after = after_s
        self._group.abort()

    def _reason(self, error: ExchangeError) -> str:
        if self._given_up_after is not None:
            return f"given up after {self._given_up_after:g} s without an answer"
        return f"its process is gone: {error}"


def follow(
    group: Group,
    job: Job,
    portion_of: Callable[[int, int, int], Portion],
    *,
    worker: int,
    like: Leaves,
) -> Over:
    """Computes what the server wants until the run is over; raises the error that it ended by."""
    cause: BaseException | None = None
    try:
        while True:
            message = _receive(group, Task | Over | Raised, like)
            if isinstance(message, Task):
                answer, cause = _answer(job, message, portion_of, worker=worker, like=like)
                _send(group, answer)
                continue
            _send(group, Heard())
            if isinstance(message, Over):
                return message
            raise _error_of(message) from cause
    finally:
        with contextlib.suppress(ExchangeError):
            group.close()


def ended(trained: Trained, leaves: Leaves) -> Over:
    """The result as it is told to the others."""
    rest = {name: getattr(trained, name) for name in trained.__struct_fields__ if name != "model"}
    return Over(model=_tensors(leaves), rest=msgspec.msgpack.encode(rest))


def failed(error: BaseException) -> Raised:
    """An error as it is told to the others."""
    return Raised(kind=type(error).__name__, text=str(error))


def result_of(over: Over, like: Leaves) -> tuple[Leaves, dict[str, Any]]:
    """The model, and the rest of the result by name."""
    return _arrays(over.model, like), msgspec.msgpack.decode(over.rest)


def _answer(
    job: Job,
    task: Task,
    portion_of: Callable[[int, int, int], Portion],
    *,
    worker: int,
    like: Leaves,
) -> tuple[Computed | Raised, BaseException | None]:
    try:
        portion = portion_of(task.epoch, task.owner, task.index)
        outcome = job.compute(worker, portion, _arrays(task.model, like))
        return Computed(leaves=_tensors(outcome.leaves)), None
    except Exception as error:  # what it is of is the server's to tell everybody
        return failed(error), error.__cause__ or error


def _error_of(raised: Raised) -> GanglineError:
    kind = getattr(errors, raised.kind, None)
    if isinstance(kind, type) and issubclass(kind, GanglineError):
        return kind(raised.text)
    return LaunchError(f"{raised.kind}: {raised.text}")


def _send(group: Group, message: Any) -> None:
    from gangline.paramserver.service.messages import send  # needs torch

    send(group, message, ticket=0)


def _receive(group: Group, kind: Any, like: Leaves) -> Any:
    from gangline.paramserver.service.messages import receive  # needs torch

    most = sum(leaf.nbytes for leaf in like) + _SLACK_BYTES
    message, _ = receive(group, kind, max_bytes=most)
    return message


def _tensors(leaves: Leaves) -> list[Any]:
    """Arrays as they travel."""
    import torch  # as the group that they travel by

    return [
        torch.from_numpy(np.ascontiguousarray(leaf)) if isinstance(leaf, np.ndarray) else leaf
        for leaf in leaves
    ]


def _arrays(tensors: list[Any], like: Leaves) -> Leaves:
    """What has come, as the user's arrays are; of the first ones, where it is fewer."""
    if len(tensors) > len(like) or any(
        tensor.numel() != leaf.nbytes // leaf.itemsize
        for tensor, leaf in zip(tensors, like, strict=False)
    ):
        raise ExchangeError("what has come is not of the model's form")
    return [
        tensor.numpy().reshape(leaf.shape)
        if isinstance(leaf, np.ndarray)
        else tensor.to(leaf.device)
        for tensor, leaf in zip(tensors, like, strict=False)
    ]
