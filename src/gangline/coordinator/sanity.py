# SPDX-License-Identifier: Apache-2.0
"""What a worker's message may say. Its types are right already; here its values are looked at.

A worker with a valid token may still be broken, or lie: nothing that it says may bring the hub into
a state from which it could not go on with the others.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gangline.protocol.messages import (
    MAX_LOGGED,
    MAX_SUMMED,
    MAX_TOLD_BYTES,
    CheckpointWritten,
    Exhausted,
    Failed,
    Finished,
    FromTeam,
    FromWorker,
    Goodbye,
    Hello,
    Knocked,
    LeaseAsked,
    LinkFound,
    LinkServed,
    Measured,
    Metrics,
    Noted,
    PartAsked,
    Ping,
    Probed,
    Reached,
    Ready,
    RoundDone,
    RoundFailed,
    Saved,
    Shown,
    StateOffered,
    Told,
    Weighed,
    is_logged_name,
)
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_COUNT = 1 << 48
"""More samples, steps or bytes than any job has; exact as a float, too."""
MAX_TEXT = 64 << 10
MAX_WORKERS = 65536
_MAX_NAME = 1024
_MAX_PATH = 4096
_MAX_S = 1e9
_MAX_DRIFT = 1e12
_MAX_STEP = 1 << 40
"""A team may say with which step all go on: there must be room for those that follow."""


def check_message(message: FromWorker) -> None:
    """Raises UsageError, with the field and its value, where no worker could mean it."""
    for field, value, is_sane in _fields(message):
        if not is_sane:
            shown = repr(value)
            raise UsageError(
                f"{type(message).__name__} with {field} = {shown[:80]}{'…' if shown[80:] else ''}: "
                "no worker can mean that"
            )


def check_report(report: Measured, *, newest: int, total: int) -> None:
    """Raises UsageError where a report cannot be; `newest` is the newest view, of `total` samples."""
    if report.view > newest:
        raise UsageError(f"Measured with view = {report.view}: {newest} is the newest")
    if report.view == newest and report.samples > total:
        raise UsageError(
            f"Measured with samples = {report.samples}: a step of view {newest} has {total}"
        )


def _fields(message: FromWorker) -> Iterator[tuple[str, object, bool]]:
    match message:
        case Hello():
            yield "worker", message.worker, -1 <= message.worker < MAX_WORKERS
            yield "pid", message.pid, 0 <= message.pid < 1 << 32
            address = message.address
            yield "port", address.port, 0 <= address.port < 1 << 16
            texts = {"run": message.run, "host": message.host, "address": address.host}
            texts = {**texts, "host_id": address.host_id, "machine": message.machine}
            for field, text in texts.items():
                yield field, text, len(text) <= _MAX_NAME
        case Ready():
            yield from _of_ready(message)
        case Measured():
            yield "team", message.team, -1 <= message.team <= MAX_COUNT
            for field in ("step", "view", "samples"):
                yield field, getattr(message, field), _is_count(getattr(message, field))
            hops = message.hops
            yield "hops", hops, len(hops) <= MAX_WORKERS and all(_is_hop(*hop) for hop in hops)
            for field in ("compute_s", "exchange_s", "other_s"):
                yield field, getattr(message, field), _is_between(getattr(message, field), _MAX_S)
            waited_s = message.waited_s
            yield "waited_s", waited_s, waited_s is None or _is_between(waited_s, _MAX_S)
        case Noted():  # the values may be anything: a loss that is not a number is one, too
            yield "step", message.step, -1 <= message.step <= MAX_COUNT
            yield "view", message.view, -1 <= message.view <= MAX_COUNT
            yield "samples", message.samples, 1 <= message.samples <= MAX_COUNT
            names = list(message.values)
            yield "values", len(names), len(names) <= MAX_LOGGED
            yield "values", names, all(is_logged_name(name) for name in names)
        case Weighed(expected=expected):
            yield from _fields(expected)
        case Shown(slowdown=slowdown):
            yield "slowdown", slowdown, 0 < slowdown < 1e9
        case StateOffered(step=step, spares=spares):
            yield "step", step, _is_count(step)
            yield "spares", spares, len(spares) <= MAX_WORKERS
        case Metrics():
            for field in ("operations_per_s", "memory_bytes", "latency_s"):
                value = getattr(message, field)
                yield field, value, _is_between(value, 1e30)
        case PartAsked():
            for field in ("group", "epoch", "step", "start", "stop", "number", "samples"):
                yield field, getattr(message, field), _is_count(getattr(message, field))
            yield "stop", message.stop, message.start < message.stop
            yield "compute_s", message.compute_s, _is_between(message.compute_s, _MAX_S)
        case Ping():
            yield "sent_s", message.sent_s, math.isfinite(message.sent_s)
            yield "waiting_s", message.waiting_s, _is_between(message.waiting_s, _MAX_S)
        case Knocked():
            times = message.times_s
            yield "times_s", times, all(-1 <= time_s <= _MAX_S for time_s in times)
            yield "times_s", len(times), len(times) <= MAX_WORKERS
        case LinkServed():
            yield "port", message.port, 0 < message.port < 1 << 16
        case LinkFound():
            yield "num_bytes", message.num_bytes, 0 <= message.num_bytes <= MAX_COUNT
            times = (message.latency_s, *message.there_s, *message.back_s)
            yield "times", len(times), len(times) <= _MAX_NAME
            yield "times", times, all(_is_between(time_s, _MAX_S) for time_s in times)
            yield "error", message.error, len(message.error) <= MAX_TEXT
        case Probed():
            yield "reached", message.reached, len(message.reached) <= MAX_WORKERS
        case Exhausted():
            yield "max_samples", message.max_samples, 1 <= message.max_samples <= MAX_COUNT
        case Failed():
            yield "group", message.group, _is_count(abs(message.group))
            yield "error", message.error, len(message.error) <= MAX_TEXT
            yield "call", message.call, len(message.call) <= _MAX_NAME
            yield "position", message.position, _is_position(message.position)
        case Finished():
            yield "group", message.group, -1 <= message.group <= MAX_COUNT
        case CheckpointWritten():
            yield "step", message.step, _is_count(message.step)
        case Goodbye():
            yield "reason", message.reason, len(message.reason) <= MAX_TEXT
            yield "position", message.position, _is_position(message.position)
        case Saved():
            yield "path", message.path, len(message.path) <= _MAX_PATH
            yield "inode", message.inode, 0 <= message.inode < 1 << 64
        case LeaseAsked() | Reached() | RoundDone() | RoundFailed() | Told():
            yield from _of_team(message)


def _of_team(message: FromTeam) -> Iterator[tuple[str, object, bool]]:
    counts: tuple[str, ...] = ()
    yield "team", message.team, -1 <= message.team <= MAX_COUNT
    match message:
        case LeaseAsked():
            counts = ("epoch", "number", "length")
        case Reached():
            counts = ("epoch", "offset")
            yield "step", message.step, 0 <= message.step <= _MAX_STEP
            yield "after", message.after, -1 <= message.after <= MAX_COUNT
            yield "closing", message.closing, -1 <= message.closing <= MAX_COUNT
        case RoundDone():
            counts = ("number", "epoch", "offset", "sent_bytes")
            yield "busy_s", message.busy_s, _is_between(message.busy_s, _MAX_S)
            yield "exchange_s", message.exchange_s, _is_between(message.exchange_s, _MAX_S)
            yield "drift", message.drift, _is_between(message.drift, _MAX_DRIFT)
        case RoundFailed():
            counts = ("number",)
            yield "error", message.error, len(message.error) <= MAX_TEXT
        case Told():  # the values may be anything: a loss that is not a number is one, too
            counts = ("epoch", "call")
            yield "values", message.values, len(message.values) <= MAX_SUMMED
            yield "name", message.name, len(message.name) <= _MAX_NAME
            yield "payload", message.payload, len(message.payload) <= MAX_TOLD_BYTES
    for field in counts:
        value: int = getattr(message, field)
        yield field, value, _is_count(value)


def _of_ready(ready: Ready) -> Iterator[tuple[str, object, bool]]:
    yield "global_batch", ready.global_batch, 1 <= ready.global_batch <= MAX_COUNT
    yield "minimum", ready.minimum, _is_count(ready.minimum)
    yield "gradient_bytes", ready.gradient_bytes, 0 <= ready.gradient_bytes < 1 << 50
    yield "allocation", ready.allocation, len(ready.allocation) <= _MAX_NAME
    traits = ready.traits
    yield "traits", traits, len(traits) <= 64 and all(len(text) <= 64 for text in traits.values())
    most = ready.max_samples
    yield "max_samples", most, most is None or _is_count(most)
    shares = ready.shares or ()
    yield "shares", shares, len(shares) <= MAX_WORKERS
    yield "shares", shares, all(_is_between(share, 1e30) for share in shares)
    yield "serving_bytes", ready.serving_bytes, 0 <= ready.serving_bytes < 1 << 50
    yield "free_bytes", ready.free_bytes, 0 <= ready.free_bytes < 1 << 50
    start, stop = ready.owns or (0, 0)
    yield "owns", ready.owns, 0 <= start <= stop <= MAX_COUNT
    workers = () if ready.structure is None else ready.structure.workers
    yield "structure", workers, all(0 <= worker < MAX_WORKERS for worker in workers)


def _is_position(position: tuple[int, ...]) -> bool:
    return len(position) <= 8 and all(-1 <= value <= MAX_COUNT for value in position)


def _is_count(value: int) -> bool:
    return 0 <= value <= MAX_COUNT


def _is_between(value: float, most: float) -> bool:
    return 0 <= value <= most


def _is_hop(peer: int, seconds: float) -> bool:
    return 0 <= peer < MAX_WORKERS and 0 < seconds <= _MAX_S
