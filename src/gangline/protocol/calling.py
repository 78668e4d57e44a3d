# SPDX-License-Identifier: Apache-2.0
"""How an agent that an engine started calls its launcher: by TLS, with a secret that it was given.

The launcher's invitation is one line of JSON, which is secret. The agent gets it over its standard
input, or in a file that only its user can read. Its first message is a `Call`; from then on the two
speak as they do through ssh (`protocol/agents.py`).
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gangline.protocol.agents import Channel
from gangline.spec.errors import LaunchError
from gangline.spec.machines.hosts import split_place

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")
_CONNECT_S = 3.0
"""How long one address is tried: a machine may have several, and some lead nowhere."""
_PAUSE_S = 0.3
_MAX_LINE_BYTES = 1 << 20


class Invitation(msgspec.Struct, frozen=True, kw_only=True):
    """Where the launcher is, and how both know each other."""

    places: tuple[str, ...]
    """Its addresses as HOST:PORT, most likely first."""
    authority: str
    """The certificate (PEM) of who vouches for the launcher."""
    secret: str

    def line(self) -> bytes:
        """The invitation as an agent reads it."""
        return msgspec.json.encode(self) + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Invitation:
        """What `line` made."""
        try:
            return msgspec.json.decode(line[:_MAX_LINE_BYTES], type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LaunchError(
                f"this is no invitation of a launcher ({error}): an agent is given one on its "
                "standard input, or by --call FILE"
            ) from error


class Call(msgspec.Struct, frozen=True, kw_only=True, tag="call", tag_field="kind"):
    """An agent calls: the first thing that it says."""

    secret: str
    name: str
    """What its place is called: of all agents of an engine, each has another one."""
    rank: int = 0
    """Which of the engine's places it is, from 0 on; 0 where they have no order."""
    slots: int = 0
    """How many agents the engine starts, as far as this one knows; 0: it does not."""


class SocketChannel(Channel[T]):
    """A line over a socket that speaks TLS."""

    def __init__(self, connection: ssl.SSLSocket, kind: object) -> None:
        super().__init__(connection.fileno(), connection.fileno(), kind)
        self.connection = connection
        connection.setblocking(False)

    def take_over(self, other: SocketChannel[Any]) -> None:
        """Goes on where another channel over the same socket has stopped reading."""
        self._incoming = other._incoming

    def _read(self, limit: int) -> bytes:
        try:
            return self.connection.recv(limit)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError(error.errno, "nothing is there yet") from error

    def _write(self, block: memoryview) -> int:
        try:
            return self.connection.send(block)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError(error.errno, "nothing is taken yet") from error


def dial(invitation: Invitation, *, deadline_s: float) -> tuple[ssl.SSLSocket, str]:
    """A connection to the launcher, and the address of it that was reached. Raises LaunchError."""
    context = ssl.create_default_context(cadata=invitation.authority)
    until = time.monotonic() + deadline_s
    problems: dict[str, str] = {}
    while True:
        for place in invitation.places:
            host, port = split_place(place, name="the launcher's address")
            try:
                return _connected(context, host, port), host
            except OSError as error:
                problems[place] = error.strerror or str(error)
        if time.monotonic() > until:
            break
        time.sleep(_PAUSE_S)
    tried = "; ".join(f"{place}: {why}" for place, why in problems.items())
    raise LaunchError(
        f"the launcher is not reached ({tried}): name an address at which this machine reaches it by "
        "--listen, or open the way"
    )


def _connected(context: ssl.SSLContext, host: str, port: int) -> ssl.SSLSocket:
    plain = socket.create_connection((host, port), timeout=_CONNECT_S)
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def hang_up(connections: Iterable[socket.socket]) -> None:
    """Closes them, whatever became of the other ends."""
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.close()
