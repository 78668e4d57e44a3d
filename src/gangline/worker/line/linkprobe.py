# SPDX-License-Identifier: Apache-2.0
"""Measures the way to another worker: latency, and bandwidth both ways, over one TCP connection.

One of two workers opens a port for the other one alone, which proves that it knows the run's token. It
then says what it wants done: an echo, so many bytes taken, so many bytes given.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
import struct
import time
from statistics import median
from typing import TYPE_CHECKING

from gangline.protocol.messages import (
    FromSurveyor,
    Knock,
    Knocked,
    LinkFound,
    LinkServed,
    MeasureLink,
    ServeLink,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.spec.exchange.address import WireAddress

TIMEOUT_S = 10.0
"""How long a peer may take for anything."""
KNOCK_S = 1.5
KNOCKS = 3
PINGS = 15
ROUNDS = 5
LARGE_BYTES = 8 << 20
LEAST_BYTES = 64 << 10
LONG_S = 0.05
"""A message that takes so long is large enough to tell the bandwidth."""
_ORDER = struct.Struct("!cI")
_ECHO, _TAKE, _GIVE = b"e", b"t", b"g"
_BLOCK = bytes(1 << 16)


def answer(
    asked: Knock | ServeLink | MeasureLink,
    *,
    token: str,
    host: str,
    send: Callable[[FromSurveyor], None],
    ports: tuple[int, int] | None = None,
) -> None:
    """Does what the coordinator asks for; what was found is sent.

    `host` is where this worker is, `ports` the first and the last at which it may listen; None: any.
    """
    match asked:
        case Knock():
            send(knock(asked))
        case MeasureLink(number=number, address=address):
            send(measure(number, address, token=token))
        case ServeLink(number=number):
            try:
                listening = open_port(host, ports)
            except OSError as error:
                send(LinkFound(number=number, error=f"no port at {host}: {error}"))
                return
            send(LinkServed(number=number, port=listening.getsockname()[1]))
            # Whatever becomes of the peer: it is the one that reports.
            with contextlib.suppress(OSError):
                serve(listening, token=token)


def knock(asked: Knock) -> Knocked:
    """How long each of these peers takes to accept a connection; -1 where it does not."""
    times = tuple(_knock_s(address) for address in asked.addresses)
    return Knocked(number=asked.number, times_s=times)


def _knock_s(address: WireAddress) -> float:
    best = -1.0
    for _ in range(KNOCKS):
        begin = time.perf_counter()
        try:
            socket.create_connection((address.host, address.port), KNOCK_S).close()
        except OSError:
            return -1.0
        took_s = time.perf_counter() - begin
        best = took_s if best < 0 else min(best, took_s)
    return best


def open_port(host: str, ports: tuple[int, int] | None = None) -> socket.socket:
    """A port at which `serve` lets one peer measure; only these may be open in a firewall."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    first, last = ports or (0, 0)
    for port in range(first, last + 1):
        listening = socket.socket(family)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(1)
        except OSError as error:
            listening.close()
            refusal = error
            continue
        listening.settimeout(TIMEOUT_S)
        return listening
    of_range = f"; of --wire-ports {first}-{last} one must be left by the workers"
    raise OSError(f"{refusal}{of_range if ports else ''}")


def serve(listening: socket.socket, *, token: str) -> None:
    """Does what one peer with the token asks for, until it goes or is too slow."""
    with listening, listening.accept()[0] as peer:
        peer.settimeout(TIMEOUT_S)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        nonce = os.urandom(16)
        peer.sendall(nonce)
        if not hmac.compare_digest(_receive(peer, 32), _proof(token, nonce)):
            return
        while True:
            order, count = _ORDER.unpack(_receive(peer, _ORDER.size))
            if count > LARGE_BYTES:
                return
            if order == _GIVE:
                _send(peer, count)
            else:
                _drop(peer, count if order == _TAKE else 0)
                peer.sendall(b"k")


def measure(number: int, address: WireAddress, *, token: str) -> LinkFound:
    """What lies between this worker and the peer that serves at `address`."""
    try:
        with socket.create_connection((address.host, address.port), TIMEOUT_S) as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.sendall(_proof(token, _receive(peer, 16)))
            latency_s = median(_echo_s(peer) for _ in range(PINGS)) / 2
            size = _large_enough(peer)
            there = tuple(_put_s(peer, size) for _ in range(ROUNDS))
            back = tuple(_get_s(peer, size) for _ in range(ROUNDS))
    except OSError as error:
        return LinkFound(number=number, error=f"{address}: {error}")
    return LinkFound(number=number, latency_s=latency_s, num_bytes=size, there_s=there, back_s=back)


def _large_enough(peer: socket.socket) -> int:
    """A size that takes long enough to be timed, and not longer than needed on a slow link."""
    size = LEAST_BYTES
    while size < LARGE_BYTES and _put_s(peer, size) < LONG_S:
        size = min(4 * size, LARGE_BYTES)
    return size


def _echo_s(peer: socket.socket) -> float:
    begin = time.perf_counter()
    peer.sendall(_ORDER.pack(_ECHO, 0))
    _receive(peer, 1)
    return time.perf_counter() - begin


def _put_s(peer: socket.socket, size: int) -> float:
    begin = time.perf_counter()
    peer.sendall(_ORDER.pack(_TAKE, size))
    _send(peer, size)
    _receive(peer, 1)
    return time.perf_counter() - begin


def _get_s(peer: socket.socket, size: int) -> float:
    begin = time.perf_counter()
    peer.sendall(_ORDER.pack(_GIVE, size))
    _drop(peer, size)
    return time.perf_counter() - begin


def _send(peer: socket.socket, count: int) -> None:
    while count:
        block = _BLOCK[:count]
        peer.sendall(block)
        count -= len(block)


def _drop(peer: socket.socket, count: int) -> None:
    while count:
        count -= len(_receive(peer, min(count, len(_BLOCK))))


def _receive(peer: socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = peer.recv(count - len(parts))
        if not part:
            raise ConnectionError("the peer went")
        parts += part
    return parts


def _proof(token: str, nonce: bytes) -> bytes:
    return hmac.new(token.encode(), b"gangline link probe" + nonce, hashlib.sha256).digest()
