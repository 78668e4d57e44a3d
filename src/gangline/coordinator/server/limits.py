# SPDX-License-Identifier: Apache-2.0
"""How much anybody may ask of the coordinator: sizes, rates, numbers of connections, times."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec
from starlette.exceptions import HTTPException

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from starlette.types import Message, Receive

_KEPT = 4096
"""So many callers are remembered; who was not heard of for longest is forgotten."""
_TIMED_OUT, _TOO_LARGE = 408, 413


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a coordinator puts up with. A stranger is a connection that has proven no token yet."""

    strangers: int = 256
    strangers_per_address: int = 128
    """One more, and the one that has been a stranger for longest is dropped."""
    connections: int = 4096
    """In all, workers and people."""
    handshake_s: float = 5.0
    """How long a stranger has for everything up to its request's last header."""
    idle_s: float = 15.0
    """How long a known connection may be kept between two requests, or take to send the next."""
    header_bytes: int = 16 << 10
    body_bytes: int = 64 << 10
    body_s: float = 5.0
    failures_per_s: float = 100.0
    """Refusals per address and second; beyond them its connections are closed unread."""
    failure_burst: float = 200.0
    requests_per_s: float = 50.0
    """Per address and role, of those that are entitled."""
    request_burst: float = 200.0
    messages_per_s: float = 2000.0
    """Per worker. Who sends more is not put out, only read no faster."""
    message_burst: float = 4000.0
    unread: int = 1024
    """So many messages wait for a worker that does not read; then its connection is closed."""
    log_bytes_per_s: float = 1 << 20
    """Of event logs, per machine; more is to be sent later."""
    log_burst_bytes: float = 8 << 20
    log_bytes: int = 16 << 30
    """Of event logs, per machine, in all; what comes then is counted and dropped."""


class Bucket:
    """Fills at a rate, up to a limit; what is taken must be there."""

    def __init__(self, rate_per_s: float, *, burst: float, now: float) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._level = burst
        self._filled_s = now

    def take(self, now: float, amount: float = 1.0) -> bool:
        """Takes one, if there is one; a larger amount is owed, and nothing is there until it fills."""
        if self.missing_s(now) > 0:
            return False
        self._level -= amount
        return True

    def missing_s(self, now: float) -> float:
        """How long until one can be taken."""
        elapsed_s = max(0.0, now - self._filled_s)
        self._level = min(self._burst, self._level + elapsed_s * self._rate_per_s)
        self._filled_s = now
        return max(0.0, (1 - self._level) / self._rate_per_s)


class Allowance:
    """One bucket per caller, for a limited number of callers."""

    def __init__(
        self, rate_per_s: float, *, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[Hashable, Bucket] = OrderedDict()

    def take(self, caller: Hashable) -> bool:
        """Whether the caller may once more."""
        bucket = self._buckets.get(caller)
        if bucket is None:
            bucket = Bucket(self._rate_per_s, burst=self._burst, now=self._clock())
            self._buckets[caller] = bucket
        self._buckets.move_to_end(caller)
        if len(self._buckets) > _KEPT:
            self._buckets.popitem(last=False)
        return bucket.take(self._clock())

    def is_spent(self, caller: Hashable) -> bool:
        """Whether the caller may not, at this time; nothing is taken."""
        bucket = self._buckets.get(caller)
        return bucket is not None and bucket.missing_s(self._clock()) > 0


def limited_body(receive: Receive, limits: Limits) -> Receive:
    """The same request, which must not be larger, nor take longer to come, than the limits say."""
    num_bytes, is_whole = 0, False

    async def receive_some() -> Message:
        nonlocal num_bytes, is_whole
        if is_whole:  # from here on it waits for the end of the connection, which has time
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), limits.body_s)
        except TimeoutError as error:
            raise HTTPException(
                _TIMED_OUT, f"the request did not come within {limits.body_s:g} s"
            ) from error
        num_bytes += len(message.get("body", b""))
        is_whole = not message.get("more_body", False)
        if num_bytes > limits.body_bytes:
            raise HTTPException(_TOO_LARGE, f"a request has at most {limits.body_bytes} bytes")
        return message

    return receive_some
