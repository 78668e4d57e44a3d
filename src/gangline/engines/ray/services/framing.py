# SPDX-License-Identifier: Apache-2.0
"""What goes between a worker and its actor: a line of JSON, and as many bytes as that says."""

from __future__ import annotations

from typing import IO, Any

import msgspec

from gangline.spec.errors import LaunchError

SOCKET_VARIABLE = "GANGLINE_RAY_SOCKET"
"""Where a worker finds its actor: a socket in a folder that is its user's alone."""
_MAX_HEADER_BYTES = 1 << 24


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker asks."""

    service: str
    """Whom."""
    what: str
    """What for."""
    values: dict[str, Any] = {}
    num_bytes: int = 0
    """How many bytes follow."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What it is given."""

    values: dict[str, Any] = {}
    error: str = ""
    """Why it is given nothing; empty: it is."""
    num_bytes: int = 0


def send(file: IO[bytes], message: Request | Answer, data: Any = b"") -> None:
    """Writes one message; `num_bytes` says how much data follows it."""
    file.write(msgspec.json.encode(message) + b"\n")
    if message.num_bytes:
        file.write(data)
    file.flush()


def receive(file: IO[bytes], kind: type[Any]) -> tuple[Any, bytes]:
    """One message and its data. Raises EOFError where the other end is gone."""
    line = file.readline(_MAX_HEADER_BYTES)
    if not line.endswith(b"\n"):
        raise EOFError
    try:
        message = msgspec.json.decode(line, type=kind)
    except msgspec.DecodeError as error:
        raise LaunchError(f"what came is no message between worker and actor: {error}") from error
    data = file.read(message.num_bytes) if message.num_bytes else b""
    if len(data) != message.num_bytes:
        raise EOFError
    return message, data
