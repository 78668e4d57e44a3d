# SPDX-License-Identifier: Apache-2.0
"""One direction of the way to a peer: pieces in order, over one or several TCP connections.

Piece i travels over connection i modulo their number. `pump` moves what can be moved without
blocking, one piece per connection at most, so that the caller can alternate between directions.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import ssl
import struct
import sys
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.collectives.wire.waiting import HANG_UP, READ, WRITE
from gangline.spec.errors import ExchangeError

if TYPE_CHECKING:
    from gangline.collectives.wire.measuring import Meter

_CRC = struct.Struct(">I")
_MAX_VIEWS = 16
_BUFFER_BYTES = 4 << 20
_LIMITS = Path("/proc/sys/net/core")
_INFO_BYTES = 184
_RTT_OFFSET, _ACKED_OFFSET, _BUSY_OFFSET = 68, 120, 168
_BROKEN = HANG_UP | select.POLLHUP | select.POLLERR
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def set_buffers(sock: socket.socket, limits: Path = _LIMITS) -> None:
    """Large buffers, where the system allows them to be asked for.

    Elsewhere, as on most Linux hosts, who asks gets little, and the buffers never grow: an exchange
    then takes twice as long. Left alone, they grow with what the link holds.
    """
    for option, name in ((socket.SO_SNDBUF, "wmem_max"), (socket.SO_RCVBUF, "rmem_max")):
        try:
            is_allowed = int((limits / name).read_text()) >= _BUFFER_BYTES
        except (OSError, ValueError):  # another system, or a namespace that does not say
            is_allowed = sys.platform != "linux"
        if is_allowed:
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)


class Link:
    """The connections to or from one peer."""

    def __init__(
        self, peer: int, socks: Sequence[socket.socket], *, meter: Meter, checksum: bool
    ) -> None:
        self.peer = peer
        self.checksum = checksum
        self.meter = meter
        self.socks = list(socks)
        for sock in self.socks:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            set_buffers(sock)

    def gone(self, error: object = "") -> ExchangeError:
        """The error that says that the peer is not there any more."""
        reason = f" ({error})" if error else ""
        return ExchangeError(f"member {self.peer} is gone: it died, or left the group{reason}")

    def measure(self) -> None:
        """Asks the system what it keeps of the connection: its round-trip time, and how long it was
        busy sending. Only that tells the links of a ring apart: all exchange for equally long.
        """
        if not hasattr(socket, "TCP_INFO"):
            return
        try:
            info = self.socks[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        except OSError:  # it was closed meanwhile
            return
        if len(info) >= _RTT_OFFSET + 4:
            (round_trip_us,) = struct.unpack_from("=I", info, _RTT_OFFSET)
            self.meter.answered(round_trip_us / 2e6)
        if len(info) >= _INFO_BYTES:
            (acked,) = struct.unpack_from("=Q", info, _ACKED_OFFSET)
            busy_us, full_us = struct.unpack_from("=QQ", info, _BUSY_OFFSET)
            # While the receiver's window is full, it is not the way that is slow.
            self.meter.flowed(acked, (busy_us - full_us) / 1e6)

    def hang_up(self) -> None:
        """Breaks the connections, from any thread; a call that waits on them returns."""
        for sock in self.socks:
            with contextlib.suppress(OSError):
                # Not SSLSocket.shutdown, which would drop the TLS state under the other thread.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        for sock in self.socks:
            sock.close()


class Sender:
    """The pieces of one operation on their way to a peer."""

    def __init__(self, link: Link, *, num_pieces: int) -> None:
        self._link = link
        self._queues: list[deque[memoryview]] = [deque() for _ in link.socks]
        self._missing = num_pieces
        self.wanted: dict[int, int] = {}

    def put(self, index: int, views: Sequence[memoryview]) -> None:
        """One of the pieces; the memory must stay as it is until the operation is over."""
        queue = self._queues[index % len(self._queues)]
        self._missing -= 1
        queue.extend(view for view in views if view.nbytes)
        if self._link.checksum:
            queue.append(memoryview(_CRC.pack(_checksum(views))))

    @property
    def is_done(self) -> bool:
        return not self._missing and not any(self._queues)

    def pump(self) -> bool:
        """Sends; whether anything was sent. `wanted` says what to wait for."""
        moved = False
        self.wanted = {}
        for sock, queue in zip(self._link.socks, self._queues, strict=True):
            if queue:
                try:
                    _advance(queue, _send(sock, queue))
                    moved = True
                except _WOULD_BLOCK as blocked:
                    self.wanted[sock.fileno()] = _events(blocked, WRITE) | HANG_UP
                except OSError as error:
                    raise self._link.gone(error) from error
            elif self._missing:
                self.wanted[sock.fileno()] = HANG_UP
        return moved

    def notice(self, happened: dict[int, int]) -> None:
        """Raises where the peer hung up before it had everything."""
        for sock in self._link.socks:
            if happened.get(sock.fileno(), 0) & _BROKEN:
                raise self._link.gone()


class Receiver:
    """The pieces of one operation on their way from a peer."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lanes: list[deque[_Arriving]] = [deque() for _ in link.socks]
        self.wanted: dict[int, int] = {}

    def expect(self, index: int, views: Sequence[memoryview], *, then: Callable[[], None]) -> None:
        """A piece goes into these views; `then` is called when it is there, and correct."""
        left = deque(view for view in views if view.nbytes)
        if not self._link.checksum:
            self._lanes[index % len(self._lanes)].append((left, then))
            return
        crc = bytearray(_CRC.size)

        def verify() -> None:
            if _CRC.unpack(crc)[0] != _checksum(views):
                self._link.meter.corrupt += 1
                raise ExchangeError(
                    f"a segment from member {self._link.peer} arrived corrupt: its checksum is "
                    f"wrong ({self._link.meter.corrupt} so far on this hop)"
                )
            then()

        left.append(memoryview(crc))
        self._lanes[index % len(self._lanes)].append((left, verify))

    @property
    def is_done(self) -> bool:
        return not any(self._lanes)

    def pump(self) -> bool:
        """Receives; whether anything came. `wanted` says what to wait for."""
        moved = False
        self.wanted = {}
        for sock, lane in zip(self._link.socks, self._lanes, strict=True):
            if not lane:
                continue
            views, then = lane[0]
            if views:
                try:
                    received = sock.recv_into(views[0])
                except _WOULD_BLOCK as blocked:
                    self.wanted[sock.fileno()] = _events(blocked, READ)
                    continue
                except OSError as error:
                    raise self._link.gone(error) from error
                if not received:
                    raise self._link.gone()
                _advance(views, received)
            moved = True
            if not views:
                lane.popleft()
                then()
        return moved


_Arriving = tuple[deque[memoryview], Callable[[], None]]


def _send(sock: socket.socket, queue: deque[memoryview]) -> int:
    if len(queue) == 1 or isinstance(sock, ssl.SSLSocket):
        return sock.send(queue[0])
    return sock.sendmsg(itertools.islice(queue, _MAX_VIEWS))


def _advance(views: deque[memoryview], num_bytes: int) -> None:
    """Takes so many bytes off the front."""
    while num_bytes:
        view = views.popleft()
        if num_bytes < view.nbytes:
            views.appendleft(view[num_bytes:])
            return
        num_bytes -= view.nbytes


def _events(blocked: Exception, default: int) -> int:
    """What to wait for: TLS may have to read before it can write, and the other way round."""
    if isinstance(blocked, ssl.SSLWantReadError):
        return READ
    return WRITE if isinstance(blocked, ssl.SSLWantWriteError) else default


def _checksum(views: Sequence[memoryview]) -> int:
    crc = 0
    for view in views:
        crc = zlib.crc32(view, crc)
    return crc
