# SPDX-License-Identifier: Apache-2.0
"""The frame that opens every operation: members compare it before they trust what follows.

It is 32 bytes, big-endian: magic, version, kind, element type, flags, sequence number, element
count, words in the header, root, and two bytes that are zero.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from gangline.spec.errors import ExchangeError, ExchangeMismatch

FRAME_BYTES = 32
_MAGIC = b"GLop"
_VERSION = 1
_LAYOUT = struct.Struct(">4sBBBBQQIHH")
_CHECKSUM = 1
MAX_ELEMENTS = 1 << 48
MAX_HEADER_WORDS = 8192


class Kind(IntEnum):
    """What members do together."""

    ALL_REDUCE = 1
    REDUCE_SCATTER = 2
    ALL_GATHER = 3
    BROADCAST = 4
    SEND = 5

    @property
    def label(self) -> str:
        return self.name.lower()


class Operation(NamedTuple):
    """One call, as all members that take part must make it."""

    kind: Kind
    sequence: int
    dtype: int
    """The code of the element type (`elements.ELEMENTS`)."""
    length: int
    """How many elements."""
    header_words: int = 0
    root: int = 0
    checksum: bool = False

    def encode(self) -> bytes:
        """The 32 bytes of the frame."""
        flags = _CHECKSUM if self.checksum else 0
        return _LAYOUT.pack(
            _MAGIC, _VERSION, self.kind, self.dtype, flags,
            self.sequence, self.length, self.header_words, self.root, 0,
        )  # fmt: skip

    @classmethod
    def decode(cls, frame: bytes) -> Operation:
        """Reads a frame; anything that `encode` does not write is refused."""
        if len(frame) != FRAME_BYTES:
            raise ExchangeError(f"an operation frame has {FRAME_BYTES} bytes, not {len(frame)}")
        magic, version, kind, dtype, flags, sequence, count, words, root, zero = _LAYOUT.unpack(
            frame
        )
        if magic != _MAGIC or zero or flags & ~_CHECKSUM:
            raise ExchangeError(f"this is not an operation frame: {frame.hex()}")
        if version != _VERSION:
            raise ExchangeError(f"operation frames of version {version}; expected {_VERSION}")
        if kind not in Kind.__members__.values():
            raise ExchangeError(f"an operation of unknown kind {kind}")
        if count > MAX_ELEMENTS or words > MAX_HEADER_WORDS:
            raise ExchangeError(f"an operation over {count} elements and {words} header words")
        return cls(Kind(kind), sequence, dtype, count, words, root, bool(flags & _CHECKSUM))


def check_same(mine: Operation, frame: bytes, *, peer: int, type_names: dict[int, str]) -> None:
    """Raises an ExchangeError that names every difference, if there is one."""
    if frame == mine.encode():
        return
    theirs = Operation.decode(frame)

    def shown(operation: Operation, field: str) -> str:
        value = getattr(operation, field)
        if field == "dtype":
            return type_names.get(value, f"type {value}")
        return value.label if field == "kind" else str(value)

    differing = [name for name in Operation._fields if getattr(mine, name) != getattr(theirs, name)]
    parts = [f"{name} {shown(mine, name)} here, {shown(theirs, name)} there" for name in differing]
    raise ExchangeMismatch(
        f"this member and member {peer} do not make the same call: {'; '.join(parts)}. "
        "All members must make the same calls in the same order"
    )
