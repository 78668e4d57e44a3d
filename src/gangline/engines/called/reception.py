# SPDX-License-Identifier: Apache-2.0
"""Where agents call: a port that speaks TLS, and lets in who knows the secret of the run."""

from __future__ import annotations

import hmac
import secrets
import socket
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gangline.engines.hosts.line import Line
from gangline.files.addresses import own_addresses
from gangline.files.tls import server_context
from gangline.protocol.agents import FromAgent
from gangline.protocol.calling import Call, Invitation, SocketChannel, hang_up
from gangline.spec.errors import LaunchError
from gangline.spec.machines.link import bracketed, is_wildcard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.files.tls import TlsFiles

_HELLO_S = 10.0
"""How long who connects may take to say who it is."""
_MAX_STRANGERS = 128
"""No more are let wait at a time: the rest is turned away, and calls again."""
_LOOPBACK = "127.0.0.1"


class CalledLine(Line):
    """A line to an agent that has called."""

    def __init__(self, channel: SocketChannel[FromAgent], heard: Sequence[FromAgent]) -> None:
        super().__init__(channel)
        self._socket = channel.connection
        self._early = list(heard)

    def listen(self) -> list[FromAgent]:
        """What the agent has said since the last time."""
        early, self._early = self._early, []
        return [*early, *super().listen()]

    def close(self) -> None:
        """Hangs up."""
        hang_up([self._socket])


class Caller(NamedTuple):
    """An agent that was let in."""

    name: str
    rank: int
    slots: int
    line: CalledLine


class _Stranger:
    """Somebody who has connected, and has not said yet who it is."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self.connection = connection
        self.deadline = time.monotonic() + _HELLO_S
        self._channel: SocketChannel[Call | FromAgent] | None = None

    def look(self, secret: str) -> Caller | None:
        """Who it is; None: that is not known yet. Raises OSError where it is nobody of ours."""
        if self._channel is None:
            try:
                self.connection.do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                self._check_late()
                return None
            self._channel = SocketChannel(self.connection, Call | FromAgent)
        heard = self._channel.receive()
        if not heard:
            self._check_late()
            return None
        call, *rest = heard
        if not isinstance(call, Call) or not _is_same(call.secret, secret):
            raise PermissionError("it does not know the secret")
        said = [one for one in rest if not isinstance(one, Call)]
        channel: SocketChannel[FromAgent] = SocketChannel(self.connection, FromAgent)
        channel.take_over(self._channel)
        return Caller(call.name, call.rank, call.slots, CalledLine(channel, said))

    def _check_late(self) -> None:
        is_closed = self._channel is not None and self._channel.is_closed
        if is_closed or time.monotonic() > self.deadline:
            raise TimeoutError("it has not said who it is")


class Reception:
    """The port, for as long as the run goes on: agents may come late."""

    def __init__(self, listen: tuple[str, int], tls: TlsFiles) -> None:
        """Raises LaunchError where nobody can listen there; `listen` is an address and a port, or 0."""
        self._secret = secrets.token_urlsafe(32)
        self._context = server_context(tls)
        self._strangers: list[_Stranger] = []
        self._authority = Path(tls.authority).read_text("ascii")
        host, port = listen
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server(
                (host, port), family=family, backlog=_MAX_STRANGERS
            )
        except OSError as error:
            raise LaunchError(
                f"cannot listen for agents at {host}: {error.strerror or error}; name another address "
                "of this machine by --listen"
            ) from error
        self._listener.setblocking(False)
        found = self._listener.getsockname()[1]
        self._places = tuple(f"{bracketed(one)}:{found}" for one in _addresses(host))

    @property
    def invitation(self) -> Invitation:
        """What agents are given; it is secret."""
        return Invitation(places=self._places, authority=self._authority, secret=self._secret)

    def look(self) -> list[Caller]:
        """The agents that have called since the last time. Never blocks."""
        self._accept()
        callers = []
        for stranger in tuple(self._strangers):
            try:
                caller = stranger.look(self._secret)
            except OSError:  # of TLS, too: whoever it is, it is none of our agents
                self._strangers.remove(stranger)
                hang_up([stranger.connection])
                continue
            if caller is not None:
                self._strangers.remove(stranger)
                callers.append(caller)
        return callers

    def close(self) -> None:
        """Nobody is let in any more; lines that are there stay."""
        hang_up([self._listener, *(one.connection for one in self._strangers)])
        self._strangers.clear()

    def _accept(self) -> None:
        while len(self._strangers) < _MAX_STRANGERS:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # nobody calls, or whoever did has hung up already
                return
            connection.setblocking(False)
            wrapped = self._context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
            self._strangers.append(_Stranger(wrapped))


def _addresses(host: str) -> list[str]:
    """Where other machines, and this one, reach a port that listens there."""
    if not is_wildcard(host):
        return [host]
    return [*own_addresses(), socket.gethostname(), _LOOPBACK]


def _is_same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(), secret.encode())
