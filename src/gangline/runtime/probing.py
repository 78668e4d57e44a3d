# SPDX-License-Identifier: Apache-2.0
"""Finds out which other workers can be reached from here: by knocking at their doors."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangline.spec.address import WireAddress

TIMEOUT_S = 1.5
"""Long enough for a second knock, should the first get lost."""
_UNDER_WAY = (0, errno.EINPROGRESS)


def find_reached(addresses: Mapping[int, WireAddress], timeout_s: float = TIMEOUT_S) -> list[int]:
    """Which workers answer, in order: all are tried at the same time."""
    reached = []
    knocking: dict[int, tuple[int, socket.socket]] = {}
    poller = select.poll()
    with contextlib.ExitStack() as stack:
        for worker, address in addresses.items():
            family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
            sock = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sock.setblocking(False)
            if sock.connect_ex((address.host, address.port)) in _UNDER_WAY:
                knocking[sock.fileno()] = worker, sock
                poller.register(sock, select.POLLOUT)
        deadline = time.monotonic() + timeout_s
        while knocking and (left_s := deadline - time.monotonic()) > 0:
            for descriptor, _ in poller.poll(left_s * 1000):
                worker, sock = knocking.pop(descriptor)
                poller.unregister(sock)
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    reached.append(worker)
    return sorted(reached)
