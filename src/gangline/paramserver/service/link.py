# SPDX-License-Identifier: Apache-2.0
"""The asking end of a connection to who holds a shard: made when needed, and anew when it broke."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from typing import TYPE_CHECKING, Protocol

import msgspec

from gangline.paramserver.service.messages import Answer, Pulling, Request, receive, send
from gangline.spec.errors import ExchangeAborted, ExchangeError, ServerLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.collectives import Group
    from gangline.paramserver.service.messages import OnTensor
    from gangline.paramserver.service.pool import Pool
    from gangline.paramserver.service.traffic import Traffic
    from gangline.spec.exchange.address import WireAddress
    from gangline.spec.serving import Host

HOLDER, ASKER = 0, 1
"""The ranks of the two ends. In shared memory the first waits for the others, as a holder does."""
PATIENCE_S = 10.0
"""How long to try for a connection before it counts as lost."""
BREAK_S = 0.002
END_S = 1.0
_RETRY_S = 0.02
_MAX_ANSWER_BYTES = 1 << 46


class Connector(Protocol):
    """How this worker makes groups of two with others, whose addresses are those of `pair_of`.

    The same two meet under the same name again after a connection broke. So who asks opens all there
    is, and who holds the shard only waits: were both to open, one might meet what the other has left.
    """

    def connect(self, level: str, *, rank: int, peer: Host, serving_number: int) -> Group:
        """The group of this name; raises an ExchangeError when the other end does not come."""
        ...

    def cancel(self, level: str, *, serving_number: int) -> None:
        """Breaks off a `connect` for this name, from another thread."""
        ...


def pair_of(own: WireAddress, peer: WireAddress, *, rank: int) -> list[WireAddress]:
    """The addresses of such a group, in rank order: who asks opens the connections, where it can."""
    holder, asker = (own, peer) if rank == HOLDER else (peer, own)
    return [holder, msgspec.structs.replace(asker, calls_out=not holder.calls_out)]


class Asks(Protocol):
    """What answers requests about one shard: over a connection, or in this process."""

    def ask(
        self,
        request: Request,
        *,
        is_wanted: Callable[[], bool],
        on_tensor: OnTensor | None = None,
    ) -> Answer:
        """The answer; `on_tensor` is told of each tensor in it when it is there."""
        ...

    def condemn(self) -> None:
        """The request that is under way is not wanted any more. Returns at once."""
        ...

    def break_off(self) -> None:
        """Waits until no request is under way that is condemned."""
        ...

    def close(self) -> None: ...


class Link:
    """A connection to the holder of one shard. One thread asks; any may interrupt."""

    def __init__(
        self,
        connector: Connector,
        level: str,
        *,
        shard: int,
        peer: Host,
        patience_s: float = PATIENCE_S,
        pool: Pool | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        """Large values that are pulled are in memory of the pool, if there is one.

        What is asked and answered is counted by `traffic`.
        """
        self.peer = peer
        self.number_of_connections = 0
        """How often it was made: what the other end knew may be gone with each."""
        self._connector, self._level, self._shard = connector, level, shard
        self._patience_s, self._pool, self._traffic = patience_s, pool, traffic
        self._group: Group | None = None
        self._connecting: int | None = None
        self._breaks = 0
        self._asking: int | None = None
        """How often it had been interrupted when the request under way began."""

    def ask(
        self,
        request: Request,
        *,
        is_wanted: Callable[[], bool] = lambda: True,
        on_tensor: OnTensor | None = None,
    ) -> Answer:
        """The answer to a request. All requests may be made twice, so a broken connection is made anew.

        Raises ServerLost when that takes too long, and ExchangeAborted when it is interrupted, or not
        wanted any more.
        """
        ends_at = time.monotonic() + self._patience_s
        reason = "it does not come"
        self._asking = asking = self._breaks
        try:
            while self._breaks == asking and is_wanted():
                try:
                    return self._ask(request, ends_at, on_tensor)
                except ExchangeError as error:
                    self._drop()
                    if not isinstance(error, ExchangeAborted):  # by the clock, which says nothing
                        reason = str(error)
                if time.monotonic() >= ends_at and self._breaks == asking and is_wanted():
                    within = f"within {self._patience_s:g} s"
                    raise ServerLost(
                        self._shard, f"worker {self.peer.worker} is not reached {within}: {reason}"
                    )
                time.sleep(_RETRY_S)
            raise ExchangeAborted(f"what shard {self._shard} was asked for was broken off")
        finally:
            self._asking = None

    def interrupt(self) -> None:
        """Makes a request that is under way raise ExchangeAborted, from any thread."""
        self.condemn()
        self.break_off()

    def condemn(self) -> None:
        """The first half of `interrupt`, which returns at once."""
        self._breaks += 1

    def break_off(self) -> None:
        """The other half: a request that began later is left alone."""
        ends_at = time.monotonic() + END_S
        while self._is_interrupted and time.monotonic() < ends_at:  # it may be about to connect
            self._break()
            time.sleep(BREAK_S)

    def close(self) -> None:
        """Interrupts, and ends the connection."""
        self.interrupt()
        self._drop()

    @property
    def _is_interrupted(self) -> bool:
        """Whether a request is under way that began before the last interruption."""
        return self._asking is not None and self._asking < self._breaks

    def _ask(self, request: Request, ends_at: float, on_tensor: OnTensor | None) -> Answer:
        group = self._group
        if group is None:
            group = self._connect(request.serving, ends_at)
            self._group = group
            self.number_of_connections += 1
        pool = self._pool if isinstance(request, Pulling) else None
        ticket = secrets.randbits(62)
        send(group, request, ticket=ticket)
        answer: Answer
        answer, _ = receive(
            group,
            Answer,
            max_bytes=_MAX_ANSWER_BYTES,
            pool=pool,
            ticket=ticket,
            on_tensor=on_tensor,
        )
        if self._traffic is not None:
            self._traffic.note(request, answer)
        return answer

    def _connect(self, serving_number: int, ends_at: float) -> Group:
        over = threading.Event()
        left_s = max(0.0, ends_at - time.monotonic())
        timer = threading.Timer(left_s, self._give_up, (serving_number, over))
        timer.daemon = True
        timer.start()
        self._connecting = serving_number
        try:
            return self._connector.connect(
                self._level, rank=ASKER, peer=self.peer, serving_number=serving_number
            )
        finally:
            self._connecting = None
            over.set()
            timer.cancel()

    def _give_up(self, serving_number: int, over: threading.Event) -> None:
        """The time for a connection has run out."""
        while not over.wait(BREAK_S):
            self._connector.cancel(self._level, serving_number=serving_number)

    def _break(self) -> None:
        number, group = self._connecting, self._group
        if number is not None:
            self._connector.cancel(self._level, serving_number=number)
        if group is not None:
            group.abort()

    def _drop(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            with contextlib.suppress(ExchangeError):
                group.abort()
                group.close()
