# SPDX-License-Identifier: Apache-2.0
"""What the main worker does first, or alone, while the others wait until it is done.

If it is killed meanwhile, the next main worker takes its turn. It may take long (a download): so that
nobody takes it to be gone, it says now and then that it is still at it.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import msgspec
import torch

from gangline.collectives import gather_bytes
from gangline.spec.errors import ExchangeError, MainWorkerError, MismatchError
from gangline.worker.job import job
from gangline.worker.together.alike import add_alike
from gangline.worker.together.calls import collective

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.collectives import Group

_TICK_S = 10.0
_MAX_TEXT = 1000
_BUSY, _DONE, _FAILED = 0.0, 1.0, 2.0


class _OwnTurn(Exception):
    """This worker is the main one now."""


@contextlib.contextmanager
def main_first() -> Iterator[None]:
    """A block that the main worker runs first; the others wait until it is done, then run it.

    It is for what should be done once, and is found by who comes later:

        with gangline.main_first():
            data = torchvision.datasets.MNIST("data", download=True)

    All workers must come to it. If the main worker's block raises, the others get a MainWorkerError
    that says what. If it is killed, another worker is the main one and runs the block first. Inside
    of the block there are no other calls that workers make together.
    """
    with turn("gangline.main_first()"):
        yield


@contextlib.contextmanager
def turn(name: str) -> Iterator[bool]:
    """A block that the main worker runs before the others; whether this is the main worker."""
    if job.turn is not None or not _has_others():
        yield job.rank == 0
        return
    is_first = _await_turn(name)
    job.turn = name
    with _StillThere(name) if is_first else contextlib.nullcontext() as there:
        try:
            yield is_first
        except BaseException as error:
            job.turn = None
            if there is not None:
                there.end(f"{type(error).__name__}: {error}")
            raise
        job.turn = None
        if there is not None:
            there.end("")


def _has_others() -> bool:
    session = job.opened()
    is_outside = session.is_late and job.training is None  # the others have done it long ago
    training = job.training
    is_past = training is not None and (training.has_left or training.progress.is_late)
    return session.client is not None and not (is_outside or is_past)


def _await_turn(name: str) -> bool:
    """Waits until the main worker is done; whether this worker is the main one, and goes first."""
    worker = job.opened().place.worker

    def wait(group: Group) -> str:
        add_alike(group, torch.zeros(0, dtype=torch.float64), name=name, worker=worker)
        while not (said := _tell(group, _BUSY)):
            pass
        return _hear_error(group, "") if said >= _FAILED else ""

    def look() -> None:
        if job.rank == 0:
            raise _OwnTurn

    try:
        look()
        # In a group without the main worker nobody would say anything: the other groups do.
        text = collective(name, wait if _is_with_main() else lambda group: "", before=look)
        text = _ask_teams(name, text)
    except _OwnTurn:
        return True
    if text:
        raise MainWorkerError(f"{name}: the main worker failed, and the others with it: {text}")
    return False


class _StillThere:
    """Says now and then that the main worker is still at it, and in the end how that went."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._session = job.opened()
        self._group: Group | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gangline-turn", daemon=True)

    def __enter__(self) -> _StillThere:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()

    def _run(self) -> None:
        tick_s = min(_TICK_S, self._session.timeout_s / 4)
        while not self._is_over.wait(tick_s):
            try:
                self._session.communicator.call(lambda group: self._say(group, _BUSY))
            except (ExchangeError, MismatchError):
                return  # it is noticed at the end of the turn, too

    def _say(self, group: Group, state: float) -> None:
        if group is not self._group:
            worker = self._session.place.worker
            nothing = torch.zeros(0, dtype=torch.float64)
            add_alike(group, nothing, name=self._name, worker=worker)
            self._group = group
        _tell(group, state)

    def end(self, error: str) -> None:
        """The turn is over: the others may go on, or learn what went wrong."""
        self._is_over.set()
        self._thread.join()

        def announce(group: Group) -> str:
            self._say(group, _FAILED if error else _DONE)
            return _hear_error(group, error) if error else ""

        collective(self._name, announce)
        _ask_teams(self._name, error)


def _tell(group: Group, state: float) -> float:
    """What the main worker says; the others say nothing."""
    said = torch.tensor([state], dtype=torch.float64)
    group.all_reduce(said)
    return float(said)


def _hear_error(group: Group, error: str) -> str:
    texts = [payload.decode(errors="replace") for payload in gather_bytes(group, error.encode())]
    return next((text for text in texts if text), "no reason given")


def _is_with_main() -> bool:
    whole = job.whole
    training = job.training
    return whole is None or whole.first_rank == 0 or training is None


def _ask_teams(name: str, error: str) -> str:
    """What went wrong with the main worker, which may be in another group; empty: nothing.

    `error` is what this worker's own group knows of that.
    """
    training = job.training
    if training is None or job.whole is None:
        return error
    payload = msgspec.msgpack.encode(error[:_MAX_TEXT]) if _is_with_main() else b""
    heard = training.calls.ask_whole(name, payload=payload)
    if heard is None:
        return error
    texts = [msgspec.msgpack.decode(one, type=str) for one in heard.payloads]
    return texts[0] if texts else "its group was lost meanwhile"
