# SPDX-License-Identifier: Apache-2.0
"""The sockets that a member listens at: a TCP port, and a Unix socket beside it."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from gangline.spec.errors import ExchangeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.spec.exchange.address import WireAddress

_BACKLOG = 128


def local_name(address: WireAddress) -> str:
    """The Unix socket beside a TCP port: an abstract name, so that no file is left behind."""
    return f"\0gangline-wire-{address.host}-{address.port}"


def bind(host: str, ports: Iterator[int]) -> socket.socket:
    """Listens at the first of these ports that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tried = []
    for port in ports:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.listen(_BACKLOG)
        except OSError as error:
            sock.close()
            tried.append(f"{port} ({error.strerror})")
            continue
        sock.setblocking(False)
        return sock
    raise ExchangeError(
        f"cannot listen at {host}; tried port {', '.join(tried[:8])}"
        f"{' …' if len(tried) > 8 else ''}: give an address of this host, and ports that are free"
    )


def bind_local(address: WireAddress) -> socket.socket:
    """Listens at the Unix socket of an address."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(local_name(address))
    sock.listen(_BACKLOG)
    sock.setblocking(False)
    return sock


def own_address(name: str) -> str | None:
    """An address of this machine that a name stands for; None: it stands for another, as a router."""
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for family, _, _, _, place in found:
        with socket.socket(family, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.bind(place)
            return str(place[0])
    return None
