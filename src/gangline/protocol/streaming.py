# SPDX-License-Identifier: Apache-2.0
"""How a machine hands its event logs to the coordinator, so that one run folder has them all.

The launcher that runs a machine's workers sends what their logs have beyond what the coordinator
says it has. A machine is known by a key that its launcher makes; its workers name it in their hello.
"""

from __future__ import annotations

import hashlib

import msgspec

LAUNCHER = -1
"""The launcher's own log, among those of its workers."""
MAX_SENT_BYTES = 40 << 10
"""Of logs in one request: as text it is a third more, and a request has 64 KiB."""


class Chunk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one log has from some place on."""

    worker: int
    """Whose log; -1: the launcher's."""
    offset: int
    """In the machine's own file, in bytes."""
    data: bytes
    """Whole lines."""
    skipped: int = 0
    """The length of a line behind them that is too long to be sent."""


class EventsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a machine's launcher sends."""

    key: str
    """Which machine it is; nobody else knows it."""
    ahead_s: float = 0.0
    """What must be added to the times of this machine to have the coordinator's."""
    chunks: tuple[Chunk, ...] = ()
    is_last: bool = False
    """Whether nothing will follow."""


class EventsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What it is told."""

    now: float
    """The coordinator's time."""
    received: dict[int, int]
    """Per log, how many bytes of it need not be sent again."""


def machine_name(key: str) -> str:
    """What a machine is called by those who must not be able to speak for it."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]
