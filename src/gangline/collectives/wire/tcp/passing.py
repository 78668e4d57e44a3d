# SPDX-License-Identifier: Apache-2.0
"""Sends and receives pieces at the same time, by one thread, without ever blocking on one of them."""

from __future__ import annotations

import functools
import os
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gangline.collectives.elements import QUIET, TYPE_NAMES, Array
from gangline.collectives.wire.operation import FRAME_BYTES, Operation, check_same
from gangline.collectives.wire.tcp.link import Link, Receiver, Sender
from gangline.collectives.wire.waiting import SPIN_S, Alarm, Deadline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.collectives.protocol import Header


class Incoming(NamedTuple):
    """Where a piece that arrives belongs."""

    into: Array
    is_added: bool
    """Add it to what is there, rather than replace that."""


class Traffic(NamedTuple):
    """What one member sends and receives in one operation."""

    outgoing: Sequence[Array]
    incoming: Sequence[Incoming]
    lag: int
    """Piece i may be sent when piece i - lag has arrived; the first `lag` ones at once."""
    header_every: int = 0
    """With a header: it travels in front of every so-manieth piece, …"""
    header_until: int = 0
    """… as long as the index is below this."""

    def has_header(self, index: int) -> bool:
        return bool(self.header_every) and (
            index < self.header_until and index % self.header_every == 0
        )


class Course(NamedTuple):
    """The links that an operation uses, and how it waits on them."""

    outgoing: Link | None
    incoming: Link | None
    alarm: Alarm
    timeout_s: float


class Passing:
    """One operation under way."""

    def __init__(
        self,
        traffic: Traffic,
        course: Course,
        *,
        operation: Operation | None = None,
        header: Header | None = None,
    ) -> None:
        self._traffic, self._course, self._header = traffic, course, header
        self._sender = self._receiver = None
        if course.outgoing is not None:
            num_pieces = len(traffic.outgoing) + (operation is not None)
            self._sender = Sender(course.outgoing, num_pieces=num_pieces)
        if course.incoming is not None:
            self._receiver = Receiver(course.incoming)
        if operation is not None:
            self._open(operation)

    def run(self) -> None:
        """Moves everything."""
        started = time.perf_counter()
        self._expect_all()
        for index in range(min(self._traffic.lag, len(self._traffic.outgoing))):
            self._put(index)
        with np.errstate(**QUIET):
            self._pump()
        duration_s = time.perf_counter() - started
        if self._course.outgoing is not None:
            sent = sum(piece.nbytes for piece in self._traffic.outgoing)
            self._course.outgoing.meter.moved(sent, duration_s)
        if self._course.incoming is not None:
            received = sum(piece.into.nbytes for piece in self._traffic.incoming)
            self._course.incoming.meter.moved(received, duration_s)

    def _open(self, operation: Operation) -> None:
        """The members compare what they are about to do."""
        if self._sender is not None:
            self._sender.put(0, [memoryview(operation.encode())])
        if self._receiver is not None and self._course.incoming is not None:
            frame, peer = bytearray(FRAME_BYTES), self._course.incoming.peer

            def check() -> None:
                check_same(operation, bytes(frame), peer=peer, type_names=TYPE_NAMES)

            self._receiver.expect(0, [memoryview(frame)], then=check)

    def _expect_all(self) -> None:
        if self._receiver is None or self._course.incoming is None:
            return
        largest = max((i.into.nbytes for i in self._traffic.incoming if i.is_added), default=0)
        # One landing space per connection: its pieces come one after the other.
        spaces = [np.empty(largest, dtype=np.uint8) for _ in self._course.incoming.socks]
        words = 0 if self._header is None else len(self._header)
        for index, (into, is_added) in enumerate(self._traffic.incoming):
            space = spaces[index % len(spaces)]
            landing = space[: into.nbytes].view(into.dtype) if is_added else into
            header = np.empty(words if self._traffic.has_header(index) else 0, dtype=np.int64)
            then = functools.partial(self._arrived, index, landing, header)
            self._receiver.expect(index, [_bytes(header), _bytes(landing)], then=then)

    def _arrived(self, index: int, landing: Array, header: Header) -> None:
        if self._header is not None and len(header):
            np.maximum(self._header, header, out=self._header)
        into, is_added = self._traffic.incoming[index]
        if is_added:
            np.add(into, landing, out=into)
        follower = index + self._traffic.lag
        if follower < len(self._traffic.outgoing):
            self._put(follower)

    def _put(self, index: int) -> None:
        assert self._sender is not None
        views = [_bytes(self._traffic.outgoing[index])]
        if self._header is not None and self._traffic.has_header(index):
            views.insert(0, memoryview(self._header.tobytes()))
        self._sender.put(index, views)

    def _pump(self) -> None:
        sender, receiver, alarm = self._sender, self._receiver, self._course.alarm
        deadline = None
        spin_until = time.perf_counter() + SPIN_S
        while True:
            moved = sender.pump() if sender else False
            if receiver and receiver.pump():
                moved = True
            if (not sender or sender.is_done) and (not receiver or receiver.is_done):
                return
            if moved:
                deadline = None
                alarm.check()
                spin_until = time.perf_counter() + SPIN_S
                continue
            if time.perf_counter() < spin_until:
                os.sched_yield()
                continue
            # The time counts from the last byte that moved: a slow link is not a dead one.
            deadline = deadline or Deadline(self._course.timeout_s)
            wanted = {**(sender.wanted if sender else {}), **(receiver.wanted if receiver else {})}
            happened = alarm.poll(wanted, deadline=deadline, whom=self._awaited())
            if sender:
                sender.notice(happened)

    def _awaited(self) -> str:
        if self._receiver and not self._receiver.is_done and self._course.incoming:
            return f"member {self._course.incoming.peer}"
        assert self._course.outgoing is not None
        return f"member {self._course.outgoing.peer}"


def _bytes(array: Array) -> memoryview:
    return array.view(np.uint8).data
