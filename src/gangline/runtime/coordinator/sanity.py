# SPDX-License-Identifier: Apache-2.0
"""What a worker's message may say. Its types are right already; here its values are looked at.

A worker with a valid token may still be broken, or lie: nothing that it says may bring the hub into
a state from which it could not go on with the others.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gangline.runtime.messages import (
    CheckpointWritten,
    Exhausted,
    Failed,
    FromWorker,
    Goodbye,
    Hello,
    Measured,
    Metrics,
    Ping,
    Probed,
    Ready,
)
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_COUNT = 1 << 48
"""More samples, steps or bytes than any job has; exact as a float, too."""
MAX_TEXT = 64 << 10
MAX_WORKERS = 65536
_MAX_NAME = 1024
_MAX_S = 1e9


def check_message(message: FromWorker) -> None:
    """Raises UsageError, with the field and its value, where no worker could mean it."""
    for field, value, is_sane in _fields(message):
        if not is_sane:
            shown = repr(value)
            raise UsageError(
                f"{type(message).__name__} with {field} = {shown[:80]}{'…' if shown[80:] else ''}: "
                "no worker can mean that"
            )


def _fields(message: FromWorker) -> Iterator[tuple[str, object, bool]]:
    match message:
        case Hello():
            yield "worker", message.worker, -1 <= message.worker < MAX_WORKERS
            yield "pid", message.pid, 0 <= message.pid < 1 << 32
            address = message.address
            yield "port", address.port, 0 <= address.port < 1 << 16
            texts = {"run": message.run, "host": message.host, "address": address.host}
            for field, text in {**texts, "host_id": address.host_id}.items():
                yield field, text, len(text) <= _MAX_NAME
        case Ready():
            yield from _of_ready(message)
        case Measured():
            for field in ("step", "view", "samples"):
                yield field, getattr(message, field), _is_count(getattr(message, field))
            yield "compute_s", message.compute_s, _is_between(message.compute_s, _MAX_S)
        case Metrics():
            for field in ("operations_per_s", "memory_bytes", "latency_s"):
                value = getattr(message, field)
                yield field, value, _is_between(value, 1e30)
        case Ping():
            yield "sent_s", message.sent_s, math.isfinite(message.sent_s)
            yield "waiting_s", message.waiting_s, _is_between(message.waiting_s, _MAX_S)
        case Probed():
            yield "reached", message.reached, len(message.reached) <= MAX_WORKERS
        case Exhausted():
            yield "max_samples", message.max_samples, 1 <= message.max_samples <= MAX_COUNT
        case Failed():
            yield "group", message.group, _is_count(abs(message.group))
            yield "error", message.error, len(message.error) <= MAX_TEXT
        case CheckpointWritten():
            yield "step", message.step, _is_count(message.step)
        case Goodbye():
            yield "reason", message.reason, len(message.reason) <= MAX_TEXT


def _of_ready(ready: Ready) -> Iterator[tuple[str, object, bool]]:
    yield "global_batch", ready.global_batch, 1 <= ready.global_batch <= MAX_COUNT
    yield "minimum", ready.minimum, _is_count(ready.minimum)
    yield "allocation", ready.allocation, len(ready.allocation) <= _MAX_NAME
    most = ready.max_samples
    yield "max_samples", most, most is None or _is_count(most)
    shares = ready.shares or ()
    yield "shares", shares, len(shares) <= MAX_WORKERS
    yield "shares", shares, all(_is_between(share, 1e30) for share in shares)
    workers = () if ready.structure is None else ready.structure.workers
    yield "structure", workers, all(0 <= worker < MAX_WORKERS for worker in workers)


def _is_count(value: int) -> bool:
    return 0 <= value <= MAX_COUNT


def _is_between(value: float, most: float) -> bool:
    return 0 <= value <= most
