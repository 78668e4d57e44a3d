# SPDX-License-Identifier: Apache-2.0
"""The frames of the hand-shake, and the proofs in them. Pure: bytes in, values out.

    initiator                      responder
    Hello (who, for which group)  ->
                                  <-  Challenge (nonce, the responder's proof)
    Proof (the initiator's proof) ->
                                  <-  Welcome, or Refusal with a reason

A proof is an HMAC-SHA256 with the run's token over both nonces, the group and the ranks, so that it
is worth nothing to anybody else, and nothing again. The token itself never travels.

A frame is magic, version, kind and length (8 bytes), then a msgpack body of at most 1024 bytes.
"""

from __future__ import annotations

import hmac
import struct
from typing import Annotated, NamedTuple

import msgspec

from gangline.collectives.protocol import GroupKey
from gangline.spec.errors import ExchangeError

PREFIX_BYTES = 8
MAX_BODY_BYTES = 1024
NONCE_BYTES = 32
INITIATOR = b"initiator"
RESPONDER = b"responder"
_MAGIC = b"GLhs"
_VERSION = 1
_PREFIX = struct.Struct(">4sBBH")

Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Mac = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Name = Annotated[str, msgspec.Meta(max_length=128)]
Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Rank = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class FrameError(ExchangeError):
    """What arrived is not a frame that can be accepted."""


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, array_like=True):
    """What all bodies have: a strict, positional encoding."""


class Hello(Body, frozen=True, kw_only=True, forbid_unknown_fields=True, array_like=True):
    """An initiator says which link of which group it wants to be."""

    run: Name
    view: Number
    attempt: Number
    level: Name
    source: Rank
    target: Rank
    link: Name
    """`ring 0`, `direct`, `mapping`: what the connection is for."""
    options: Name
    """What both sides must have chosen alike."""
    tls: bool
    nonce: Nonce

    @property
    def key(self) -> GroupKey:
        return GroupKey(self.run, self.view, self.attempt, self.level)


class Challenge(Body, frozen=True, kw_only=True, forbid_unknown_fields=True, array_like=True):
    """The responder proves the token, and asks for the initiator's proof."""

    nonce: Nonce
    mac: Mac


class Proof(Body, frozen=True, kw_only=True, forbid_unknown_fields=True, array_like=True):
    """The initiator proves the token."""

    mac: Mac


class Welcome(Body, frozen=True, kw_only=True, forbid_unknown_fields=True, array_like=True):
    """The connection is part of the group from here on."""


class Refusal(Body, frozen=True, kw_only=True, forbid_unknown_fields=True, array_like=True):
    """The connection is not wanted."""

    reason: Annotated[str, msgspec.Meta(max_length=512)]


_KINDS: dict[int, type[Body]] = {1: Hello, 2: Challenge, 3: Proof, 4: Welcome, 5: Refusal}
_CODES = {body: code for code, body in _KINDS.items()}


def encode(body: Body) -> bytes:
    """One frame."""
    packed = msgspec.msgpack.encode(body)
    if len(packed) > MAX_BODY_BYTES:
        raise FrameError(f"a hand-shake frame of {len(packed)} bytes; at most {MAX_BODY_BYTES}")
    return _PREFIX.pack(_MAGIC, _VERSION, _CODES[type(body)], len(packed)) + packed


def decode_prefix(prefix: bytes) -> tuple[type[Body], int]:
    """The type and the length of the body that follows these 8 bytes."""
    if len(prefix) != PREFIX_BYTES:
        raise FrameError(f"a frame begins with {PREFIX_BYTES} bytes, not {len(prefix)}")
    magic, version, kind, length = _PREFIX.unpack(prefix)
    if magic != _MAGIC:
        raise FrameError("this is not a gangline hand-shake")
    if version != _VERSION:
        raise FrameError(f"hand-shake version {version}; this member speaks {_VERSION}")
    if kind not in _KINDS:
        raise FrameError(f"a hand-shake frame of unknown kind {kind}")
    if length > MAX_BODY_BYTES:
        raise FrameError(f"a hand-shake frame of {length} bytes; at most {MAX_BODY_BYTES}")
    return _KINDS[kind], length


def decode_body(kind: type[Body], packed: bytes) -> Body:
    """The body of a frame."""
    try:
        return msgspec.msgpack.decode(packed, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FrameError(f"a malformed {kind.__name__} frame: {error}") from error


class Shake(NamedTuple):
    """One hand-shake: what the proofs are about."""

    token: bytes
    hello: Hello
    nonce: bytes
    """The responder's; the initiator's is in the Hello."""

    def proof(self, role: bytes) -> bytes:
        """What only a holder of the token can say about this hand-shake, in this role."""
        said = msgspec.msgpack.encode(self.hello)
        transcript = b"gangline wire 1 " + role + b"\0" + self.nonce + said
        return hmac.digest(self.token, transcript, "sha256")

    def is_proven(self, mac: bytes, role: bytes) -> bool:
        """Whether the other side holds the token; takes the same time whatever it says."""
        return hmac.compare_digest(mac, self.proof(role))
