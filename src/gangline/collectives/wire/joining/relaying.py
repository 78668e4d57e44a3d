# SPDX-License-Identifier: Apache-2.0
"""A member that can be called passes on what two others say that cannot call each other.

Each of the two opens one half of the connection to it, and proves the token. From then on it passes
bytes: the hand-shake of the two goes through it, with TLS where the group uses it, and then it can read
none of what they say.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

from gangline.collectives.forking import close_in_children

if TYPE_CHECKING:
    from gangline.collectives.protocol import GroupKey

_PREFIX = "relay"
_BLOCK_BYTES = 1 << 16
DRAIN_S = 5.0
"""How long a process that ends waits for those between whom it passes on."""


def relayed(source: int, sink: int, link: str) -> str:
    """The name of both halves of a link that is passed on."""
    return f"{_PREFIX} {source} {sink} {link}"


def is_relayed(link: str) -> bool:
    """Whether a connection is a half that is to be passed on."""
    return link.startswith(f"{_PREFIX} ")


class Relay:
    """Finds the halves that belong together, and passes on between them until these two hang up.

    A group may be over for this member while the last of what the two say is on its way: what is passed
    on goes on without the group, and `close` waits for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._waiting: dict[tuple[GroupKey, str], tuple[int, socket.socket]] = {}
        self._socks: list[socket.socket] = []
        self._num_passing = 0
        self._is_closed = False
        close_in_children(self, self._socks)

    def offer(self, key: GroupKey, member: int, link: str, sock: socket.socket) -> bool:
        """One half has come; False where it is not wanted."""
        with self._lock:
            if self._is_closed:
                return False
            sock.setblocking(True)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._socks.append(sock)
            waiting = self._waiting.pop((key, link), None)
            if waiting is None or waiting[0] == member:
                self._waiting[key, link] = member, sock
                if waiting is not None:  # it calls again: of one member, the last counts
                    self._drop(waiting[1])
                return True
            self._num_passing += 1
        threading.Thread(
            target=self._pass_both, args=(sock, waiting[1]), name="wire-relay", daemon=True
        ).start()
        return True

    def forget(self, key: GroupKey) -> None:
        """Nobody of this group is waited for any more."""
        with self._lock:
            for one in [one for one in self._waiting if one[0] == key]:
                self._drop(self._waiting.pop(one)[1])

    def close(self) -> None:
        """Waits a while until the others have said everything, and ends all connections."""
        with self._lock:
            self._is_closed = True
            for _, sock in self._waiting.values():
                self._drop(sock)
            self._waiting.clear()
            self._lock.wait_for(lambda: not self._num_passing, DRAIN_S)
            for sock in self._socks:
                _hang_up(sock)

    def _pass_both(self, one: socket.socket, other: socket.socket) -> None:
        back = threading.Thread(
            target=_pass_on, args=(other, one), name="wire-relay-back", daemon=True
        )
        back.start()
        _pass_on(one, other)
        back.join()
        with self._lock:
            self._drop(one)
            self._drop(other)
            self._num_passing -= 1
            self._lock.notify_all()

    def _drop(self, sock: socket.socket) -> None:
        self._socks.remove(sock)
        sock.close()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    """One direction, until one of the two has ended; then the other one ends, too."""
    with contextlib.suppress(OSError):
        while block := source.recv(_BLOCK_BYTES):
            sink.sendall(block)
    _hang_up(source)
    _hang_up(sink)


def _hang_up(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
