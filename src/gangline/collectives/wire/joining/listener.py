# SPDX-License-Identifier: Apache-2.0
"""The listener: the one place where connections come in, for all groups of a process.

One thread runs all hand-shakes side by side, so that a slow or silent stranger delays nobody. What
comes early, for a group that this member does not know yet, is parked. Hand-shakes and parked
connections are bounded in number and time: when there are too many, the oldest goes, and a member
that lost its place tries again.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gangline.collectives.forking import close_in_children
from gangline.collectives.wire.joining import handshake
from gangline.collectives.wire.joining.binding import bind, bind_local, own_address
from gangline.collectives.wire.joining.relaying import Relay, is_relayed
from gangline.collectives.wire.nouns import WireAddress, host_id
from gangline.collectives.wire.waiting import READ, Alarm, Deadline
from gangline.spec.errors import ExchangeAborted, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.collectives.protocol import GroupKey
    from gangline.collectives.wire.joining.frames import Hello
    from gangline.collectives.wire.joining.handshake import Membership

MAX_ARRIVALS = 256
"""Hand-shakes in progress and parked connections, together."""
HANDSHAKE_S = 5.0
PARKED_S = 60.0


class Port(NamedTuple):
    """Which connection of a group this is: from whom, and what for."""

    source: int
    link: str


class Expectation:
    """The connections of one group, as they come in."""

    def __init__(self, membership: Membership, alarm: Alarm, listener: Listener) -> None:
        self.membership = membership
        self._alarm = alarm
        self._listener = listener
        self._lock = threading.Lock()
        self._come: dict[Port, socket.socket] = {}
        self._seen: set[Port] = set()
        self._is_closed = False

    def wants(self, port: Port) -> bool:
        """Whether this connection has not come yet."""
        with self._lock:
            return is_relayed(port.link) or not (self._is_closed or port in self._seen)

    def deliver(self, port: Port, sock: socket.socket) -> bool:
        """Hands over a proven connection; False where it is not wanted (again)."""
        if is_relayed(port.link):
            key = self.membership.key
            return self._listener.relay.offer(key, port.source, port.link, sock)
        with self._lock:
            if self._is_closed or port in self._seen:
                return False
            self._seen.add(port)
            self._come[port] = sock
        self._alarm.ring()
        return True

    def take(self, port: Port, *, deadline: Deadline) -> socket.socket:
        """Waits for a connection."""
        while True:
            with self._lock:
                sock = self._come.pop(port, None)
            if sock is not None:
                return sock
            whom = f"member {port.source} to connect ({port.link})"
            self._alarm.poll({}, deadline=deadline, whom=whom)

    @property
    def unreached(self) -> set[WireAddress]:
        """Whom this member could not call."""
        return self._listener.unreached

    def adopt(self, sock: socket.socket) -> None:
        """A connection that this member opened to be called over: who calls shakes hands."""
        self._listener.adopt(sock)

    def cancel(self) -> None:
        """Makes a wait in progress raise ExchangeAborted."""
        self._alarm.abort()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            left = list(self._come.values())
            self._come.clear()
        for sock in left:
            sock.close()
        self._listener.relay.forget(self.membership.key)


class _Arrival:
    """A connection whose hand-shake goes on."""

    def __init__(self, sock: socket.socket, listener: Listener) -> None:
        self.descriptor = sock.fileno()
        self.steps = handshake.respond(sock, register=listener)
        self.ends_at = time.monotonic() + HANDSHAKE_S
        self.is_parked = False


class Listener:
    """Accepts connections at one interface, for any number of groups."""

    def __init__(self, *, host: str, ports: Iterator[int], announced: WireAddress) -> None:
        """`announced` is where others reach it, but for the port."""
        self._doors = [bind(host, ports)]
        port = self._doors[0].getsockname()[1]
        self.address = msgspec.structs.replace(announced, port=port)
        if announced.host_id:
            self._doors.append(bind_local(self.address))
        self._lock = threading.Lock()
        self._groups: dict[GroupKey, Expectation] = {}
        self._arrivals: dict[int, _Arrival] = {}
        self._adopted: list[socket.socket] = []
        self.relay = Relay()
        self.unreached: set[WireAddress] = set()
        """Whom this member could not call, and had to be passed on to."""
        self._alarm = Alarm()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._alarm.fd, selectors.EVENT_READ)
        for door in self._doors:
            self._selector.register(door, selectors.EVENT_READ)
        close_in_children(self, self._doors)
        self._thread = threading.Thread(target=self._serve, name="wire-listener", daemon=True)
        self._thread.start()

    def expect(self, membership: Membership, alarm: Alarm) -> Expectation:
        """From now on, connections of this group are let in."""
        expectation = Expectation(membership, alarm, self)
        with self._lock:
            if self._alarm.aborted:
                raise ExchangeAborted("the listener is closed")
            if membership.key in self._groups:
                raise UsageError(f"this process is in the group {membership.key} already")
            self._groups[membership.key] = expectation
        self._alarm.ring()
        return expectation

    def adopt(self, sock: socket.socket) -> None:
        """Treats a connection that was opened from here as one that came in."""
        with self._lock:
            self._adopted.append(sock)
        self._alarm.ring()

    def forget(self, key: GroupKey) -> None:
        """Lets in nobody of this group any more."""
        with self._lock:
            expectation = self._groups.pop(key, None)
        if expectation is not None:
            expectation.close()

    def cancel(self, key: GroupKey) -> None:
        """Makes a `connect` for this group that is in progress raise ExchangeAborted."""
        with self._lock:
            expectation = self._groups.get(key)
        if expectation is not None:
            expectation.cancel()

    def find(self, key: GroupKey) -> Membership | None:
        with self._lock:
            expectation = self._groups.get(key)
        return expectation.membership if expectation else None

    def is_wanted(self, hello: Hello) -> bool:
        """Whether the group that this connection is for still waits for it."""
        with self._lock:
            expectation = self._groups.get(hello.key)
        return expectation is not None and expectation.wants(Port(hello.source, hello.link))

    def close(self) -> None:
        """Closes the port; groups that are complete go on. May be called twice."""
        with self._lock:
            if self._alarm.aborted:
                return
            self._alarm.abort()
            waiting = list(self._groups.values())
        self._thread.join()
        for expectation in waiting:
            expectation.close()
        for door in self._doors:
            door.close()
        self.relay.close()
        self._selector.close()
        self._alarm.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What follows runs in the listener's thread.

    def _serve(self) -> None:
        while not self._alarm.aborted:
            for key, _ in self._selector.select(self._patience_s()):
                if key.fd == self._alarm.fd:
                    self._alarm.silence()
                    self._take_adopted()
                    self._unpark()
                elif key.data is None:
                    self._accept(key.fileobj)
                else:
                    self._advance(key.data)
            self._expire()
        self._take_adopted()
        for arrival in list(self._arrivals.values()):
            self._drop(arrival)

    def _take_adopted(self) -> None:
        with self._lock:
            adopted, self._adopted = self._adopted, []
        for sock in adopted:
            arrival = _Arrival(sock, self)
            arrival.ends_at = time.monotonic() + PARKED_S  # until the other one has come
            self._arrivals[arrival.descriptor] = arrival
            self._advance(arrival)

    def _patience_s(self) -> float | None:
        if not self._arrivals:
            return None
        soonest = min(arrival.ends_at for arrival in self._arrivals.values())
        return max(0.0, soonest - time.monotonic())

    def _accept(self, door: object) -> None:
        assert isinstance(door, socket.socket)
        try:
            sock, _ = door.accept()
        except OSError:
            # The initiator is gone again, or descriptors ran out: then the oldest makes room.
            self._drop_oldest()
            return
        sock.setblocking(False)
        if len(self._arrivals) >= MAX_ARRIVALS:
            self._drop_oldest()
        arrival = _Arrival(sock, self)
        self._arrivals[arrival.descriptor] = arrival
        self._advance(arrival)

    def _advance(self, arrival: _Arrival) -> None:
        if self._arrivals.get(arrival.descriptor) is not arrival:
            return  # dropped to make room, after this event was reported
        try:
            events = next(arrival.steps)
        except StopIteration as end:
            self._unwatch(arrival)
            del self._arrivals[arrival.descriptor]
            sock, hello = end.value
            self._hand_over(sock, hello)
            return
        except Exception:
            # Whatever a stranger sent: it costs the stranger the connection, and nobody else.
            self._drop(arrival)
            return
        self._unwatch(arrival)
        if events == handshake.PARKED:
            if not arrival.is_parked:
                arrival.is_parked, arrival.ends_at = True, time.monotonic() + PARKED_S
            return
        wanted = selectors.EVENT_READ if events == READ else selectors.EVENT_WRITE
        self._selector.register(arrival.descriptor, wanted, arrival)

    def _hand_over(self, sock: socket.socket, hello: Hello) -> None:
        with self._lock:
            expectation = self._groups.get(hello.key)
        if expectation is None or not expectation.deliver(Port(hello.source, hello.link), sock):
            sock.close()

    def _unpark(self) -> None:
        for arrival in [a for a in self._arrivals.values() if a.is_parked]:
            self._advance(arrival)

    def _expire(self) -> None:
        now = time.monotonic()
        for arrival in [a for a in self._arrivals.values() if a.ends_at <= now]:
            self._drop(arrival)

    def _drop_oldest(self) -> None:
        if self._arrivals:
            self._drop(next(iter(self._arrivals.values())))

    def _unwatch(self, arrival: _Arrival) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(arrival.descriptor)

    def _drop(self, arrival: _Arrival) -> None:
        self._unwatch(arrival)
        self._arrivals.pop(arrival.descriptor, None)
        arrival.steps.close()


def listen(
    host: str = "127.0.0.1",
    *,
    port_range: tuple[int, int] | None = None,
    shared_host_id: str | None = None,
    calls_out: bool = False,
    announced: str | None = None,
) -> Listener:
    """Opens this member's port: at this interface only, any free port or the first of a range.

    `shared_host_id` overrides which members share memory: emulated hosts give different ones. A member
    that `calls_out` opens the connections with all that can be called. `announced` is the name or place
    at which others look for it, if that is another one: it listens there, where that is this machine's.
    """
    if port_range is None:
        ports = iter((0,))
    else:
        first, last = port_range
        if not 1 <= first <= last <= 65535:
            raise UsageError(f"port_range is (first, last) within 1 … 65535, not {port_range}")
        ports = iter(range(first, last + 1))
    chosen = host_id() if shared_host_id is None else shared_host_id
    own = host if announced is None else own_address(announced) or host
    address = WireAddress(host=announced or host, port=0, host_id=chosen, calls_out=calls_out)
    return Listener(host=own, ports=ports, announced=address)
