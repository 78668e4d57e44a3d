# SPDX-License-Identifier: Apache-2.0
"""Opens a connection to another member's listener, and shakes hands."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

from gangline.collectives.wire.joining import handshake
from gangline.collectives.wire.joining.binding import local_name
from gangline.collectives.wire.joining.handshake import Disconnected, Membership
from gangline.collectives.wire.waiting import WRITE, Alarm, Deadline
from gangline.spec.errors import ExchangeAborted, ExchangeError

if TYPE_CHECKING:
    from gangline.collectives.wire.nouns import WireAddress

_RETRY_S = 0.01
_IN_PROGRESS = {errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY}


class Peer(NamedTuple):
    """Whom to connect to, and what for."""

    rank: int
    address: WireAddress
    link: str
    is_local: bool = False
    """Meet at the Unix socket rather than the TCP port."""

    def __str__(self) -> str:
        return f"member {self.rank} at {self.address}"


def dial(peer: Peer, *, membership: Membership, alarm: Alarm, deadline: Deadline) -> socket.socket:
    """A proven connection to the peer; tries again while the peer is not ready for it."""
    reason = ""
    while deadline.left_s > 0:
        try:
            sock = _connect(peer, alarm=alarm, deadline=deadline)
            return shake(sock, peer, membership=membership, alarm=alarm, deadline=deadline)
        except (Disconnected, OSError) as error:
            # Its listener is not up yet, or had to make room: there will be room again.
            reason = f" ({error})"
            alarm.pause(_RETRY_S)
        except ExchangeAborted:
            raise
        except ExchangeError as error:
            raise ExchangeError(f"cannot connect to {peer}: {error}") from error
    raise ExchangeError(f"no connection to {peer} within {deadline.timeout_s:g} s{reason}")


def _connect(peer: Peer, *, alarm: Alarm, deadline: Deadline) -> socket.socket:
    family, place = _place_of(peer)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        code = sock.connect_ex(place)
        if code in _IN_PROGRESS and not peer.is_local:
            while not alarm.poll({sock.fileno(): WRITE}, deadline=deadline, whom=str(peer)):
                pass
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
    except BaseException:
        sock.close()
        raise
    return sock


def _place_of(peer: Peer) -> tuple[int, Any]:
    """What to connect to; names are looked up each time, as they may move."""
    if peer.is_local:
        return socket.AF_UNIX, local_name(peer.address)
    host, port = peer.address.host, peer.address.port
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return family, place


def shake(
    sock: socket.socket, peer: Peer, *, membership: Membership, alarm: Alarm, deadline: Deadline
) -> socket.socket:
    """Shakes hands over a connection, and returns the one that the group may use."""
    steps = handshake.initiate(
        sock, membership=membership, target=peer.rank, link=peer.link, host=peer.address.host
    )
    descriptor = sock.fileno()
    try:
        while True:
            events = next(steps)
            while not alarm.poll({descriptor: events}, deadline=deadline, whom=str(peer)):
                pass
    except StopIteration as end:
        shaken: socket.socket = end.value
        return shaken
    finally:
        steps.close()
