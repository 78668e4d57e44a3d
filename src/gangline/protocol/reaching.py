# SPDX-License-Identifier: Apache-2.0
"""Whether a port of another machine can be reached, and if not, in which of the ways that differ."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from gangline.protocol.status import CalledBack

if TYPE_CHECKING:
    from collections.abc import Callable

GREETING = b"gangline doctor\n"
"""What is said to who connects to a port that is opened to be tried."""
_NO_WAY = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EADDRNOTAVAIL}


class Reach(StrEnum):
    """What became of an attempt."""

    OPEN = "open"
    REFUSED = "refused"
    """The machine is there, and nobody listens."""
    FILTERED = "filtered"
    """No answer at all: a firewall, or the machine is off."""
    UNREACHABLE = "unreachable"
    """There is no way to it."""
    UNKNOWN = "unknown"
    """Nobody knows the name."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to reach a port."""

    reach: Reach
    detail: str = ""
    """What the system said."""
    own_address: str = ""
    """The address of this machine that it went out from."""
    greeting: bytes = b""
    """What the other side said first, if it was asked for."""


def try_port(host: str, port: int, *, timeout_s: float, greeting_bytes: int = 0) -> Attempt:
    """Connects, and hangs up; the first bytes of the other side's are read where they are asked for."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as sock:
            own = str(sock.getsockname()[0])
            try:
                said = sock.recv(greeting_bytes) if greeting_bytes else b""
            except OSError:
                said = b""
            return Attempt(reach=Reach.OPEN, own_address=own, greeting=said)
    except TimeoutError:
        return Attempt(reach=Reach.FILTERED, detail=f"no answer within {timeout_s:g} s")
    except (socket.gaierror, UnicodeError) as error:
        return Attempt(reach=Reach.UNKNOWN, detail=str(error))
    except OSError as error:
        said_why = error.strerror or str(error)
        if error.errno == errno.ECONNREFUSED:
            return Attempt(reach=Reach.REFUSED, detail=said_why)
        kind = Reach.UNREACHABLE if error.errno in _NO_WAY else Reach.FILTERED
        return Attempt(reach=kind, detail=said_why)


def interface_towards(host: str, port: int) -> str:
    """The address of this machine from which `host` is reached; nothing is sent."""
    family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def greet_all(listener: socket.socket) -> None:
    """Says who is there to everybody that connects, in a thread that ends with the listener."""

    def serve() -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                sock, _ = listener.accept()
                with contextlib.suppress(OSError), sock:
                    sock.sendall(GREETING)

    threading.Thread(target=serve, name="gangline-greeter", daemon=True).start()


def hang_up(listener: socket.socket) -> None:
    """Closes a listener, and wakes who waits at it."""
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def listen_within(host: str, ports: tuple[int, int] | None) -> socket.socket:
    """A listening socket at a port of the range that is free; raises OSError where there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last: OSError | None = None
    for port in (0,) if ports is None else range(ports[0], ports[1] + 1):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.listen()
        except OSError as error:
            sock.close()
            last = error
            continue
        return sock
    assert last is not None
    raise last


def call_back(own: str, ports: tuple[int, int] | None, ask: Callable[[str], bytes]) -> CalledBack:
    """Has the coordinator call a port of this machine; `ask` brings its answer to a path.

    Raises OSError where no port can be listened on, and `msgspec.DecodeError` for another answer.
    """
    listener = listen_within(own, ports)
    try:
        greet_all(listener)
        document = ask(f"/api/reach?port={listener.getsockname()[1]}")
        return msgspec.json.decode(document, type=CalledBack)
    finally:
        hang_up(listener)
