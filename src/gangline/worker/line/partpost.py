# SPDX-License-Identifier: Apache-2.0
"""The parts of global batches that this worker was given, until they are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gangline.protocol.messages import PartAsked, PartGiven

_KEPT = 256


class PartPost:
    """Filled by the thread that listens to the coordinator, read by the training loop."""

    def __init__(self) -> None:
        self._given: dict[tuple[int, int, int, int], PartGiven] = {}

    def put(self, message: PartGiven) -> None:
        """Keeps an answer."""
        kept = list(self._given.items())[-_KEPT:]
        self._given = {**dict(kept), _place(message): message}

    def find(self, asked: PartAsked) -> PartGiven | None:
        """The answer to a question, if it has come."""
        return self._given.get(_place(asked))


def _place(message: PartAsked | PartGiven) -> tuple[int, int, int, int]:
    return message.group, message.epoch, message.step, message.number
