# SPDX-License-Identifier: Apache-2.0
"""The hand-shake on a non-blocking socket, as generators that say what they wait for.

A generator yields the poll events that it needs before it can go on, and returns the socket that
the group may use. Whoever runs it owns the waiting: the listener runs many side by side, a member
that connects runs one under its deadline.
"""

from __future__ import annotations

import secrets
import socket
import ssl
from collections.abc import Generator
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from gangline.collectives.wire.joining import frames
from gangline.collectives.wire.joining.frames import (
    INITIATOR,
    RESPONDER,
    Challenge,
    FrameError,
    Hello,
    Proof,
    Refusal,
    Shake,
    Welcome,
)
from gangline.collectives.wire.joining.relaying import is_relayed
from gangline.collectives.wire.waiting import READ, WRITE
from gangline.spec.errors import ExchangeError

if TYPE_CHECKING:
    from gangline.collectives.protocol import GroupKey
    from gangline.collectives.wire.nouns import WireOptions

PARKED = 0
"""Yielded by `respond` while the group of the Hello is not known here yet."""

T = TypeVar("T")
BodyT = TypeVar("BodyT", bound=frames.Body)
Steps = Generator[int, None, T]


class Disconnected(ExchangeError):
    """The other side closed the connection in the middle of the hand-shake."""


class Membership(NamedTuple):
    """What a member must know to let others into a group."""

    key: GroupKey
    rank: int
    size: int
    token: bytes
    options: WireOptions

    @property
    def agreed(self) -> str:
        """The options that both ends of a link must have chosen alike."""
        chosen = self.options
        return f"connections={chosen.connections} checksum={chosen.checksum} size={self.size}"


class Register(Protocol):
    """Where a responder looks up the groups of its process."""

    def find(self, key: GroupKey) -> Membership | None: ...

    def is_wanted(self, hello: Hello) -> bool:
        """Whether the group still waits for this connection."""
        ...


def initiate(
    sock: socket.socket, *, membership: Membership, target: int, link: str, host: str
) -> Steps[socket.socket]:
    """Proves the token to the responder, and makes it prove it too. Owns the socket meanwhile."""
    try:
        key, tls = membership.key, membership.options.client_tls
        if sock.family == socket.AF_UNIX or is_relayed(link):
            tls = None
        hello = Hello(
            run=key.run, view=key.view, attempt=key.attempt, level=key.level,
            source=membership.rank, target=target, link=link, options=membership.agreed,
            tls=tls is not None, nonce=secrets.token_bytes(frames.NONCE_BYTES),
        )  # fmt: skip
        yield from _write(sock, hello)
        if tls is not None:
            # In the clear the responder says that it goes on in TLS, or why it does not.
            yield from _read(sock, Welcome)
            sock = _wrap(sock, context=tls, server_name=host)
            yield from _shake_tls(sock)
        challenge = yield from _read(sock, Challenge)
        shake = Shake(membership.token, hello, challenge.nonce)
        if not shake.is_proven(challenge.mac, RESPONDER):
            raise ExchangeError(f"member {target} does not hold the token of run {key.run!r}")
        yield from _write(sock, Proof(mac=shake.proof(INITIATOR)))
        yield from _read(sock, Welcome)
        return sock
    except BaseException:
        sock.close()
        raise


def respond(sock: socket.socket, *, register: Register) -> Steps[tuple[socket.socket, Hello]]:
    """Lets in who proves the token of a group of this process. Owns the socket meanwhile."""
    try:
        hello = yield from _read(sock, Hello)
        while (membership := register.find(hello.key)) is None:
            yield PARKED
        objection = _objection(hello, membership=membership, family=sock.family)
        if objection:
            yield from _write(sock, Refusal(reason=objection))
            raise FrameError(objection)
        if hello.tls:
            assert membership.options.server_tls is not None
            yield from _write(sock, Welcome())
            sock = _wrap(sock, context=membership.options.server_tls)
            yield from _shake_tls(sock)
        shake = Shake(membership.token, hello, secrets.token_bytes(frames.NONCE_BYTES))
        yield from _write(sock, Challenge(nonce=shake.nonce, mac=shake.proof(RESPONDER)))
        proof = yield from _read(sock, Proof)
        if not shake.is_proven(proof.mac, INITIATOR):
            raise FrameError("a stranger without the token of the run")
        if not register.is_wanted(hello):
            # It came for a group that the same members make anew, and met the one before, which is
            # complete. Nobody may take it for a connection of the new group: it must come again.
            raise FrameError("the group has this connection already")
        yield from _write(sock, Welcome())
        return sock, hello
    except BaseException:
        sock.close()
        raise


def _objection(hello: Hello, *, membership: Membership, family: int) -> str:
    """Why the connection cannot be part of the group; empty where it can."""
    if hello.target != membership.rank:
        return f"this is member {membership.rank}, not {hello.target}"
    if hello.source >= membership.size or hello.source == membership.rank:
        return f"there is no other member {hello.source} in a group of {membership.size}"
    if hello.options != membership.agreed:
        return f"options differ: {hello.options} there, {membership.agreed} here"
    # What is passed on is encrypted by those two that speak, or not at all.
    has_own_tls = family == socket.AF_UNIX or is_relayed(hello.link)
    if hello.tls != (membership.options.tls and not has_own_tls):
        return f"TLS is {'off' if hello.tls else 'on'} here, {'on' if hello.tls else 'off'} there"
    return ""


def _read_exactly(sock: socket.socket, length: int) -> Steps[bytes]:
    # Never a byte more than asked for: what follows may be TLS, or the group's own.
    received = bytearray()
    while len(received) < length:
        try:
            piece = sock.recv(length - len(received))
        except (BlockingIOError, ssl.SSLWantReadError):
            yield READ
            continue
        except ssl.SSLWantWriteError:
            yield WRITE
            continue
        except OSError as error:
            raise Disconnected(f"the connection broke ({error})") from error
        if not piece:
            raise Disconnected("the connection was closed during the hand-shake")
        received += piece
    return bytes(received)


def _read_any(sock: socket.socket) -> Steps[frames.Body]:
    kind, length = frames.decode_prefix((yield from _read_exactly(sock, frames.PREFIX_BYTES)))
    return frames.decode_body(kind, (yield from _read_exactly(sock, length)))


def _read(sock: socket.socket, kind: type[BodyT]) -> Steps[BodyT]:
    body = yield from _read_any(sock)
    if isinstance(body, Refusal):
        raise ExchangeError(f"refused: {body.reason}")
    if not isinstance(body, kind):
        raise FrameError(f"a {type(body).__name__} frame where a {kind.__name__} was due")
    return body


def _write(sock: socket.socket, body: frames.Body) -> Steps[None]:
    left = memoryview(frames.encode(body))
    while left:
        try:
            left = left[sock.send(left) :]
        except (BlockingIOError, ssl.SSLWantWriteError):
            yield WRITE
        except ssl.SSLWantReadError:
            yield READ
        except OSError as error:
            raise Disconnected(f"the connection broke ({error})") from error


def _wrap(
    sock: socket.socket, *, context: ssl.SSLContext, server_name: str | None = None
) -> ssl.SSLSocket:
    return context.wrap_socket(
        sock,
        server_side=server_name is None,
        server_hostname=server_name,
        do_handshake_on_connect=False,
    )


def _shake_tls(sock: ssl.SSLSocket) -> Steps[None]:
    while True:
        try:
            return sock.do_handshake()
        except ssl.SSLWantReadError:
            yield READ
        except ssl.SSLWantWriteError:
            yield WRITE
        except OSError as error:
            raise ExchangeError(f"TLS could not be set up: {error}") from error
