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

    from gangline.spec.exchange.address import WireAddress

TIMEOUT_S = 1.0
"""Who has not answered by then cannot be reached."""
KNOCKS_S = (0.0, 0.3, 0.6)
"""When to knock, as long as nobody answers: a packet may get lost, and the system sends it again only
after a second."""
_UNDER_WAY = (0, errno.EINPROGRESS)


def find_reached(addresses: Mapping[int, WireAddress], timeout_s: float = TIMEOUT_S) -> list[int]:
    """Which workers answer, in order: all are tried at the same time."""
    started_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        knocking = _Knocking(stack)
        for knock_s, until_s in zip(KNOCKS_S, (*KNOCKS_S[1:], timeout_s), strict=True):
            if knock_s and not knocking.is_under_way:
                break  # everybody has answered, or refused
            for worker, address in addresses.items():
                if worker not in knocking.reached:
                    knocking.knock(worker, address)
            knocking.await_answers(deadline_s=started_s + min(until_s, timeout_s))
    return sorted(knocking.reached)


def find_callable(own: WireAddress, addresses: Mapping[int, WireAddress]) -> tuple[int, ...]:
    """With whom a worker can make connections, whoever opens them.

    Who can only call out cannot be knocked at: whether it gets through it says itself. Between two of
    those, somebody passes on who can be called.
    """
    calling = {one for one, address in addresses.items() if own.is_called_by(address)}
    reached = {*find_reached({one: addresses[one] for one in addresses.keys() - calling})}
    if own.calls_out and any(not addresses[one].calls_out for one in reached):
        reached |= {one for one, address in addresses.items() if address.calls_out}
    return tuple(sorted(reached | calling))


class _Knocking:
    """Connections that are being made, and who has answered."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.reached: set[int] = set()
        self._stack = stack
        self._socks: dict[int, tuple[int, socket.socket]] = {}
        self._poller = select.poll()

    @property
    def is_under_way(self) -> bool:
        """Whether somebody may still answer who has not."""
        return any(worker not in self.reached for worker, _ in self._socks.values())

    def knock(self, worker: int, address: WireAddress) -> None:
        kind = socket.SOCK_STREAM
        try:
            family, _, _, _, place = socket.getaddrinfo(address.host, address.port, type=kind)[0]
        except socket.gaierror:  # a machine that is cut off knows no names either
            return
        sock = self._stack.enter_context(socket.socket(family, kind))
        sock.setblocking(False)
        code = sock.connect_ex(place)
        if code in _UNDER_WAY:
            self._socks[sock.fileno()] = worker, sock
            self._poller.register(sock, select.POLLOUT)

    def await_answers(self, *, deadline_s: float) -> None:
        while self.is_under_way and (left_s := deadline_s - time.monotonic()) > 0:
            for descriptor, _ in self._poller.poll(left_s * 1000):
                worker, sock = self._socks.pop(descriptor)
                self._poller.unregister(sock)
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    self.reached.add(worker)
