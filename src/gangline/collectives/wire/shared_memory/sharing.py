# SPDX-License-Identifier: Apache-2.0
"""Makes the shared memory of a group: member 0 creates it, and hands it to the others.

All others connect to member 0's Unix socket and prove the token there. Descriptors travel over
that connection, so that neither the memory nor the pipes ever have a name.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING

from gangline.collectives.wire.joining.dialing import Peer, dial
from gangline.collectives.wire.joining.listener import Expectation, Port
from gangline.collectives.wire.shared_memory.doorbells import Cords, Doorbells
from gangline.collectives.wire.shared_memory.mapping import Layout, Mapping, make_memory
from gangline.collectives.wire.shared_memory.shared import SharedExchange
from gangline.collectives.wire.waiting import READ, Alarm, Deadline, close_descriptors
from gangline.spec.errors import ExchangeError

if TYPE_CHECKING:
    from gangline.collectives.wire.joining.handshake import Membership
    from gangline.collectives.wire.nouns import WireAddress

MAX_MEMBERS = 120
"""One message carries at most 253 descriptors: two per member, and two more."""
LINK = "mapping"
_SEGMENT = struct.Struct(">Q")
_ACCEPTED = b"\x01"


def share(
    membership: Membership,
    *,
    expectation: Expectation,
    addresses: list[WireAddress],
    alarm: Alarm,
    deadline: Deadline,
) -> SharedExchange:
    """This member's end of the group's shared memory, once all members have theirs."""
    rank = membership.rank
    if rank == 0:
        socks: list[socket.socket] = []
        try:
            socks.extend(
                expectation.take(Port(peer, LINK), deadline=deadline)
                for peer in range(1, membership.size)
            )
            layout = Layout.of(membership.size, membership.options.segment_bytes)
            descriptors = _hand_out(socks, layout, alarm=alarm, deadline=deadline)
        finally:
            for sock in socks:
                sock.close()
    else:
        peer0 = Peer(0, addresses[0], LINK, is_local=True)
        sock = dial(peer0, membership=membership, alarm=alarm, deadline=deadline)
        with sock:
            layout, descriptors = _take(sock, membership, alarm=alarm, deadline=deadline)
    return _open(membership, layout, descriptors, alarm=alarm, deadline=deadline)


def _hand_out(
    socks: list[socket.socket], layout: Layout, *, alarm: Alarm, deadline: Deadline
) -> list[int]:
    """Creates everything; returns member 0's descriptors."""
    size = layout.members
    bells = [os.eventfd(0, os.EFD_CLOEXEC) for _ in range(size)]
    pipes = [os.pipe() for _ in range(size)]
    shared = [make_memory(layout), *bells, *(reader for reader, _ in pipes)]
    writers = [writer for _, writer in pipes]
    try:
        for peer, sock in enumerate(socks, start=1):
            greeting = _SEGMENT.pack(layout.segment_bytes)
            socket.send_fds(sock, [greeting], [writers[peer], *shared])
            # One at a time: the system bounds how many descriptors may be under way.
            _wait_readable(sock, f"member {peer}", alarm=alarm, deadline=deadline)
            if sock.recv(1) != _ACCEPTED:
                raise ExchangeError(f"member {peer} is gone: it could not map the shared memory")
    except ConnectionError as error:
        close_descriptors([*shared, *writers])
        raise ExchangeError("a member is gone that was handed the shared memory") from error
    except BaseException:
        close_descriptors([*shared, *writers])
        raise
    close_descriptors(writers[1:])
    return [writers[0], *shared]


def _take(
    sock: socket.socket, membership: Membership, *, alarm: Alarm, deadline: Deadline
) -> tuple[Layout, list[int]]:
    """What member 0 hands out."""
    expected = 2 * membership.size + 2
    whom = "member 0, which waits for all members of the group"
    _wait_readable(sock, whom, alarm=alarm, deadline=deadline)
    greeting, descriptors, _, _ = socket.recv_fds(
        sock, _SEGMENT.size, expected, socket.MSG_CMSG_CLOEXEC
    )
    if len(greeting) != _SEGMENT.size or len(descriptors) != expected:
        close_descriptors(descriptors)
        raise ExchangeError("member 0 is gone: the group's shared memory was not handed over")
    layout = Layout(membership.size, _SEGMENT.unpack(greeting)[0])
    try:
        sock.send(_ACCEPTED)
    except ConnectionError as error:
        close_descriptors(descriptors)
        raise ExchangeError(
            "member 0 is gone: it has given the group's shared memory up"
        ) from error
    return layout, descriptors


def _open(
    membership: Membership,
    layout: Layout,
    descriptors: list[int],
    *,
    alarm: Alarm,
    deadline: Deadline,
) -> SharedExchange:
    size, rank = layout.members, membership.rank
    writer, memory, *rest = descriptors
    cords = Cords(rest[:size], rest[size:], writer)
    try:
        mapping = Mapping(memory, layout)
    except BaseException:
        close_descriptors(descriptors)
        raise
    os.close(memory)
    doorbells = Doorbells(mapping, rank=rank, cords=cords, alarm=alarm)
    timeout_s = membership.options.timeout_s
    exchange = SharedExchange(mapping, doorbells, rank=rank, timeout_s=timeout_s)
    try:
        doorbells.barrier(max(deadline.left_s, 0.0))
    except BaseException:
        exchange.close()
        raise
    return exchange


def _wait_readable(sock: socket.socket, whom: str, *, alarm: Alarm, deadline: Deadline) -> None:
    while not alarm.poll({sock.fileno(): READ}, deadline=deadline, whom=whom):
        pass
