# SPDX-License-Identifier: Apache-2.0
"""How many bytes of parameters and gradients go to other workers and come from them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from torch import Tensor

from gangline.paramserver.service.messages import Pulling, PullingState, Pushing, PushingEarly

if TYPE_CHECKING:
    from gangline.paramserver.service.messages import Answer, Request


class Moved(NamedTuple):
    """Bytes of tensors that went over connections; those in this process move nothing."""

    pushed: int = 0
    pulled: int = 0
    num_pulls: int = 0
    num_fetches: int = 0


class Traffic:
    """Counts what a client's connections carry; several threads add to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moved = Moved()

    def note(self, request: Request, answer: Answer) -> None:
        """One question was answered: what was sent for a pull counts as pulled, too."""
        size = num_bytes(request) + num_bytes(answer)
        with self._lock:
            moved = self._moved
            if isinstance(request, Pushing | PushingEarly):
                self._moved = moved._replace(pushed=moved.pushed + size)
            elif isinstance(request, Pulling | PullingState):
                self._moved = moved._replace(pulled=moved.pulled + size)

    def count_pull(self) -> None:
        """All shards are pulled from."""
        with self._lock:
            self._moved = self._moved._replace(num_pulls=self._moved.num_pulls + 1)

    def count_fetch(self) -> None:
        """Some rows are asked for beside the pulls."""
        with self._lock:
            self._moved = self._moved._replace(num_fetches=self._moved.num_fetches + 1)

    def take(self) -> Moved:
        """What was moved since the last call."""
        with self._lock:
            moved, self._moved = self._moved, Moved()
        return moved


def num_bytes(value: Any) -> int:
    """Of all tensors in a message."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, msgspec.Struct):
        return sum(num_bytes(getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, dict):
        return sum(num_bytes(inner) for inner in value.values())
    if isinstance(value, list | tuple):
        return sum(num_bytes(inner) for inner in value)
    return 0
