# SPDX-License-Identifier: Apache-2.0
"""Everybody's message, at everybody: a frame that is checked, a header, and what a codec made.

A frame is 16 bytes, little-endian: magic, kind of compression, flags, words in the header, elements of
the tensor. A message that is not finite says so in its flags, and holds nothing else.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from gangline.spec.errors import ExchangeError
from gangline.spec.exchange.compression import KINDS
from gangline.spec.exchange.compression_format import FRAME_BYTES

if TYPE_CHECKING:
    from gangline.collectives.compression.codec import Bytes
    from gangline.collectives.protocol import Group, Header

_FRAME = struct.Struct("<4sBBHQ")
_MAGIC = b"GLc1"
_NON_FINITE = 1
_CODES = {kind: code for code, kind in enumerate(KINDS)}


class Message(NamedTuple):
    """What one member says in one exchange."""

    kind: str
    length: int
    """How many elements the tensor has."""
    body: Bytes
    header: Header | None = None
    is_finite: bool = True

    @property
    def num_words(self) -> int:
        return 0 if self.header is None else len(self.header)

    def encode(self) -> Bytes:
        """As bytes."""
        flags = 0 if self.is_finite else _NON_FINITE
        frame = _FRAME.pack(_MAGIC, _CODES[self.kind], flags, self.num_words, self.length)
        words = np.empty(0, dtype=np.uint8) if self.header is None else self.header.view(np.uint8)
        return np.concatenate([np.frombuffer(frame, dtype=np.uint8), words, self.body])

    def answer(self, encoded: Bytes, *, sender: int) -> Message:
        """What another member said to this message; an ExchangeError where it does not match."""
        if encoded.size < FRAME_BYTES:
            raise ExchangeError(
                f"member {sender} sent {encoded.size} bytes, too few for a compressed message"
            )
        magic, code, flags, words, length = _FRAME.unpack(encoded[:FRAME_BYTES].tobytes())
        start = FRAME_BYTES + 8 * words
        if magic != _MAGIC or flags & ~_NON_FINITE or encoded.size < start:
            raise ExchangeError(
                f"member {sender} sent a corrupt compressed message, which begins with "
                f"{encoded[:FRAME_BYTES].tobytes().hex()}"
            )
        if (code, words, length) != (_CODES[self.kind], self.num_words, self.length):
            names = dict(enumerate(KINDS))
            raise ExchangeError(
                f"member {sender} sent {length} elements by {names.get(code, f'kind {code}')} with "
                f"{words} header words, this one {self.length} by {self.kind} with "
                f"{self.num_words}; all members must make the same calls with the same compression"
            )
        header = encoded[FRAME_BYTES:start].view(np.int64) if words else None
        return Message(self.kind, length, encoded[start:], header, not flags)


def gather(group: Group, message: Message, *, is_fixed: bool) -> tuple[list[Message], int]:
    """Everybody's message in rank order, and the bytes that this member sent and passed on.

    `is_fixed` spares a question: all members' messages are known to be of the same size. Otherwise
    they are padded to the longest. The header becomes the greatest of all, element by element.
    """
    encoded = torch.from_numpy(message.encode())
    sizes = [encoded.numel()] * group.size
    num_bytes = 0
    if not is_fixed:
        given = group.all_gather(torch.tensor([encoded.numel()], dtype=torch.int64))
        sizes = [int(size) for size in given]
        encoded = torch.nn.functional.pad(encoded, (0, max(sizes) - encoded.numel()))
        num_bytes = (group.size - 1) * 8
    rows = group.all_gather(encoded)
    messages = [
        message.answer(row[:size].numpy(), sender=sender)
        for sender, (row, size) in enumerate(zip(rows, sizes, strict=True))
    ]
    if message.header is not None:
        for one in messages:
            assert one.header is not None
            np.maximum(message.header, one.header, out=message.header)
    return messages, num_bytes + (group.size - 1) * encoded.numel()
