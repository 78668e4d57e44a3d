# SPDX-License-Identifier: Apache-2.0
"""Where connections come in: counted, timed and, with TLS, shaken hands with.

Whoever has not proven a token is a stranger, of whom there is room for a few, for a short time: a
client that sends its request byte by byte, or nothing at all, makes room for the next. Workers that
are connected do not compete with strangers, also where both come from one address.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from typing import TYPE_CHECKING, NamedTuple

from gangline.coordinator.server.limits import Allowance, Limits

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

_SWEEP_S = 0.25
_PAUSE_S = 0.05
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closed at once, so that no closed connection waits in the kernel."""


class Caller(NamedTuple):
    """The other end of a connection."""

    host: str
    port: int


class Visit:
    """One connection."""

    def __init__(self, caller: Caller, sock: socket.socket, *, ends_s: float) -> None:
        self.caller = caller
        self.ends_s: float | None = ends_s
        """When it is dropped; None while a request is under way."""
        self._sock = sock
        self._opening: asyncio.Task[None] | None = None
        self._is_owned = False
        """Whether the loop has the socket, and closes it."""
        self._transport: asyncio.Transport | None = None

    def open(
        self,
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        tls: ssl.SSLContext | None,
        timeout_s: float,
    ) -> None:
        """Begins to talk; with TLS, after the hand-shake."""
        loop = asyncio.get_running_loop()

        async def connect() -> None:
            self._is_owned = True
            with contextlib.suppress(OSError):  # whatever a stranger does to its own connection
                self._transport, _ = await loop.connect_accepted_socket(
                    make_protocol,
                    self._sock,
                    ssl=tls,
                    ssl_handshake_timeout=None if tls is None else timeout_s,
                )

        self._opening = loop.create_task(connect())

    @property
    def is_over(self) -> bool:
        """Whether the connection is closed already."""
        if self._transport is not None:
            return self._transport.is_closing()
        return self._opening is not None and self._opening.done()

    def drop(self) -> None:
        """Ends the connection at once."""
        if self._transport is not None:
            if not self._transport.is_closing():  # Python 3.11 fails to abort TLS that has ended
                self._transport.abort()
            return
        if self._opening is not None:
            self._opening.cancel()
        if not self._is_owned:
            self._sock.close()


class Entrance:
    """Accepts connections at one port."""

    def __init__(
        self,
        listening: socket.socket,
        *,
        limits: Limits,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listening = listening
        self._limits = limits
        self._tls = tls
        self._clock = clock
        self._strangers: dict[Caller, Visit] = {}
        self._known: dict[Caller, Visit] = {}
        self._failures = Allowance(limits.failures_per_s, burst=limits.failure_burst, clock=clock)

    async def serve(self, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        """Accepts until it is cancelled."""
        self._listening.setblocking(False)
        loop = asyncio.get_running_loop()
        sweeping = loop.create_task(self._sweep_on())
        try:
            while True:
                try:
                    sock, address = await loop.sock_accept(self._listening)
                except OSError:  # out of descriptors: strangers make room
                    self._drop_oldest()
                    await asyncio.sleep(_PAUSE_S)
                    continue
                self.admit(sock, Caller(str(address[0]), int(address[1])), make_protocol)
        finally:
            sweeping.cancel()
            for visit in self._strangers.values():
                visit.drop()  # those that are known are told of the end by the server

    def admit(
        self,
        sock: socket.socket,
        caller: Caller,
        make_protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        """Lets a connection in, if there is room or room can be made."""
        if self._failures.is_spent(caller.host) or not self._has_room(caller.host):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            sock.close()
            return
        sock.setblocking(False)
        visit = Visit(caller, sock, ends_s=self._clock() + self._limits.handshake_s)
        self._strangers[caller] = visit
        visit.open(make_protocol, tls=self._tls, timeout_s=self._limits.handshake_s)

    @contextlib.contextmanager
    def proven(self, client: tuple[str, int]) -> Iterator[None]:
        """While a request of somebody with a token is answered."""
        caller = Caller(*client)
        visit = self._strangers.pop(caller, None) or self._known.get(caller)
        if visit is None:  # dropped at this very moment
            yield
            return
        self._known[caller] = visit
        visit.ends_s = None
        try:
            yield
        finally:
            visit.ends_s = self._clock() + self._limits.idle_s

    @property
    def num_strangers(self) -> int:
        """How many connections have proven nothing yet."""
        return len(self._strangers)

    def sweep(self) -> None:
        """Forgets who is gone, and drops those whose time is over."""
        now = self._clock()
        for visits in (self._strangers, self._known):
            for caller, visit in list(visits.items()):
                is_late = visit.ends_s is not None and visit.ends_s <= now
                if visit.is_over or is_late:
                    visit.drop()
                    del visits[caller]
                    if visits is self._strangers:  # it went as it came: refused, or a waste of time
                        self._failures.take(caller.host)

    async def _sweep_on(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.sweep()

    def _has_room(self, host: str) -> bool:
        limits = self._limits
        if len(self._strangers) >= min(limits.strangers, limits.strangers_per_address):
            self.sweep()
        if len(self._strangers) + len(self._known) >= limits.connections:
            return False
        if sum(caller.host == host for caller in self._strangers) >= limits.strangers_per_address:
            self._drop_oldest(host)
        elif len(self._strangers) >= limits.strangers:
            self._drop_oldest()
        return True

    def _drop_oldest(self, host: str | None = None) -> None:
        for caller, visit in self._strangers.items():
            if host is None or caller.host == host:
                visit.drop()
                self._failures.take(caller.host)
                del self._strangers[caller]
                return
