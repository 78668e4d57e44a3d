# SPDX-License-Identifier: Apache-2.0
"""All TCP links of one member: those of the ring, made at once, and direct ones, made when needed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gangline.collectives.forking import close_in_children
from gangline.collectives.wire.joining.dialing import Peer, dial, shake
from gangline.collectives.wire.joining.listener import Expectation, Port
from gangline.collectives.wire.joining.relaying import relayed
from gangline.collectives.wire.measuring import Meter
from gangline.collectives.wire.tcp.link import Link
from gangline.collectives.wire.waiting import Deadline
from gangline.spec.errors import ExchangeAborted, ExchangeError

if TYPE_CHECKING:
    import socket

    from gangline.collectives.wire.joining.handshake import Membership
    from gangline.collectives.wire.nouns import HopStats, WireAddress
    from gangline.collectives.wire.waiting import Alarm


DIRECT_S = 3.0
"""How long two that only call out try to call each other, before somebody passes on between them."""
_BACK = "back"
"""Marks a connection that was opened by who receives over it."""


class Links:
    """Makes links, and breaks them. A link carries in one direction only."""

    def __init__(
        self,
        membership: Membership,
        *,
        expectation: Expectation,
        addresses: list[WireAddress],
        alarm: Alarm,
    ) -> None:
        self.membership, self.alarm = membership, alarm
        self._expectation, self._addresses = expectation, addresses
        self._lock = threading.Lock()
        self._is_broken = False
        self._made: dict[tuple[str, int], Link] = {}
        self._socks: list[socket.socket] = []
        self._meters: dict[int, Meter] = {}
        close_in_children(self, self._socks)

    def to(self, peer: int, purpose: str, *, deadline: Deadline) -> Link:
        """The link to a peer: this member opens it, unless the peer can only call out."""
        if link := self._made.get((f"to {purpose}", peer)):
            return link
        own = self._addresses[self.membership.rank]
        if own.is_called_by(self._addresses[peer]):
            socks = self._await_all(peer, f"{purpose} {_BACK}", deadline)
        else:
            socks = self._dial_or_relay(peer, purpose, deadline)
        return self._add(f"to {purpose}", peer, socks)

    def source(self, peer: int, purpose: str, *, deadline: Deadline) -> Link:
        """The link from a peer: the peer opens it, unless this member can only call out."""
        if link := self._made.get((f"from {purpose}", peer)):
            return link
        own = self._addresses[self.membership.rank]
        if self._addresses[peer].is_called_by(own):
            socks = self._dial_all(peer, f"{purpose} {_BACK}", deadline)
        else:
            self._offer_relayed(peer, purpose, deadline)
            socks = self._await_all(peer, purpose, deadline)
        return self._add(f"from {purpose}", peer, socks)

    def _relay_between(self, peer: int) -> int | None:
        """Who passes on between this member and a peer, if both only call out; None: nobody."""
        own = self._addresses[self.membership.rank]
        if not own.calls_out or not self._addresses[peer].calls_out:
            return None
        ranks = range(len(self._addresses))
        return next((rank for rank in ranks if not self._addresses[rank].calls_out), None)

    def _dial_or_relay(self, peer: int, purpose: str, deadline: Deadline) -> list[socket.socket]:
        """Opened from here; where that fails and somebody can pass on, through that one."""
        relay, unreached = self._relay_between(peer), self._expectation.unreached
        if relay is None:
            return self._dial_all(peer, purpose, deadline)
        if self._addresses[peer] not in unreached:
            try:
                first = Deadline(min(DIRECT_S, max(deadline.left_s, 0.0)))
                return self._dial_all(peer, purpose, first)
            except ExchangeAborted:
                raise
            except ExchangeError:
                unreached.add(self._addresses[peer])
        halves = self._dial_all(relay, relayed(self.membership.rank, peer, purpose), deadline)
        socks: list[socket.socket] = []
        try:
            for lane, half in enumerate(halves):
                whom = Peer(peer, self._addresses[peer], f"{purpose} {lane}")
                shaken = shake(
                    half,
                    whom,
                    membership=self.membership,
                    alarm=self.alarm,
                    deadline=deadline,
                )
                socks.append(shaken)
        except BaseException:
            _close([*halves, *socks])
            raise
        return socks

    def _offer_relayed(self, peer: int, purpose: str, deadline: Deadline) -> None:
        """Opens its half of a connection that is passed on: the peer may need it."""
        relay = self._relay_between(peer)
        if relay is not None:
            name = relayed(peer, self.membership.rank, purpose)
            for half in self._dial_all(relay, name, deadline):
                self._expectation.adopt(half)

    def _dial_all(self, peer: int, purpose: str, deadline: Deadline) -> list[socket.socket]:
        """All connections of a link, opened from here."""
        socks: list[socket.socket] = []
        try:
            for lane in range(self.membership.options.connections):
                whom = Peer(peer, self._addresses[peer], f"{purpose} {lane}")
                socks.append(
                    dial(whom, membership=self.membership, alarm=self.alarm, deadline=deadline)
                )
        except BaseException:
            _close(socks)
            raise
        return socks

    def _await_all(self, peer: int, purpose: str, deadline: Deadline) -> list[socket.socket]:
        """All connections of a link, opened by the peer."""
        socks: list[socket.socket] = []
        try:
            for lane in range(self.membership.options.connections):
                port = Port(peer, f"{purpose} {lane}")
                socks.append(self._expectation.take(port, deadline=deadline))
        except BaseException:
            _close(socks)
            raise
        return socks

    def _add(self, purpose: str, peer: int, socks: list[socket.socket]) -> Link:
        meter = self._meters.setdefault(peer, Meter())
        link = Link(peer, socks, meter=meter, checksum=self.membership.options.checksum)
        with self._lock:
            if not self._is_broken:
                self._made[purpose, peer] = link
                self._socks.extend(socks)
                return link
        link.close()
        raise ExchangeAborted("the exchange was broken off by this process")

    def hops(self) -> list[HopStats]:
        for link in list(self._made.values()):
            link.measure()
        return [meter.stats(peer) for peer, meter in list(self._meters.items())]

    def hang_up(self) -> None:
        """Breaks all connections, from any thread."""
        with self._lock:
            self._is_broken = True
            for link in self._made.values():
                link.hang_up()

    def close(self) -> None:
        with self._lock:
            self._is_broken = True
            for link in self._made.values():
                link.close()
            self._made.clear()
            self._socks.clear()


def _close(socks: list[socket.socket]) -> None:
    for sock in socks:
        sock.close()
