# SPDX-License-Identifier: Apache-2.0
"""What goes between neighbouring stages: a group of two for each direction, driven by threads.

So nobody waits for a message to be taken, and what arrives is there when a stage comes to it.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.paramserver.service.messages import receive, send
from gangline.spec.errors import ExchangeError

if TYPE_CHECKING:
    from torch import Tensor

    from gangline.collectives import Group

_MAX_BYTES = 1 << 46


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """The activations of a micro-batch, or the gradient by them."""

    step: int
    micro_batch: int
    tensor: Any


class Outgoing:
    """Sends in the order of `put`, on a thread of its own."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._waiting: queue.SimpleQueue[Carried | None] = queue.SimpleQueue()
        self._error: ExchangeError | None = None
        self._thread = threading.Thread(target=self._run, name="gangline-stage-out", daemon=True)
        self._thread.start()

    def put(self, step: int, micro_batch: int, tensor: Tensor) -> None:
        """Sends a tensor, which nobody may change from here on. Raises what went wrong before."""
        if self._error is not None:
            raise self._error
        self._waiting.put(Carried(step=step, micro_batch=micro_batch, tensor=tensor))

    def close(self) -> None:
        """Waits for the thread; the group was aborted."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (message := self._waiting.get()) is not None:
            try:
                send(self._group, message, ticket=0)
            except ExchangeError as error:
                self._error = error
                return


class Incoming:
    """Receives ahead, on a thread of its own."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._arrived: queue.SimpleQueue[Carried | ExchangeError] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="gangline-stage-in", daemon=True)
        self._thread.start()

    def take(self, step: int, micro_batch: int) -> Tensor:
        """Waits for what belongs to this micro-batch, which must be the next to come."""
        found = self._arrived.get()
        if isinstance(found, ExchangeError):
            self._arrived.put(found)
            raise found
        if (found.step, found.micro_batch) != (step, micro_batch):
            raise ExchangeError(
                f"step {step}, micro-batch {micro_batch} was expected, and step {found.step}, "
                f"micro-batch {found.micro_batch} came"
            )
        tensor: Tensor = found.tensor
        return tensor

    def close(self) -> None:
        """Waits for the thread; the group was aborted."""
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                message, _ = receive(self._group, Carried, max_bytes=_MAX_BYTES)
            except ExchangeError as error:
                self._arrived.put(error)
                return
            self._arrived.put(message)
