# SPDX-License-Identifier: Apache-2.0
"""The protocol of a codec: one member's tensor as a message, and back.

Whoever decodes a message gets the same bits on every machine: decoding uses look-ups and single
multiplications and additions only, whose results IEEE 754 fixes, and no sums, whose order is free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from gangline.spec.errors import ExchangeError
from gangline.spec.exchange.compression_format import CHUNK

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
T = TypeVar("T", bound=np.generic)


_BLOCK = 64 * CHUNK
"""How many elements are worked on at once: their intermediate results stay in the cache."""


class Codec(Protocol):
    """What shortens a flat float32 tensor in host memory, finite and of one element at least."""

    keeps_residual: bool
    """Whether what a message leaves out is added to the next tensor (error feedback)."""

    def message_bytes(self, length: int) -> int | None:
        """The size of every message for so many elements; None where it differs."""
        ...

    def encode(self, flat: Tensor) -> Bytes:
        """The message."""
        ...

    def decode(self, message: Bytes, length: int) -> Tensor:
        """The tensor that a message stands for; an ExchangeError where it cannot be one of ours."""
        ...


def rows(flat: npt.NDArray[T]) -> Iterator[npt.NDArray[T]]:
    """The whole chunks as the rows of arrays, some at a time; the rest as an array of one row."""
    whole = flat.size // CHUNK * CHUNK
    for start in range(0, whole, _BLOCK):
        yield flat[start : min(start + _BLOCK, whole)].reshape(-1, CHUNK)
    if whole < flat.size:
        yield flat[whole:].reshape(1, -1)


def joined(parts: Sequence[npt.NDArray[Any]]) -> Bytes:
    """Arrays one after the other, as bytes."""
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8).reshape(-1) for part in parts])


def check_size(message: Bytes, expected: int, *, what: str) -> None:
    """Refuses a message that cannot be what it claims to be."""
    if message.size != expected:
        raise ExchangeError(
            f"a corrupt {what} message: {message.size} bytes instead of {expected}; "
            "all members must use the same compression of the same version"
        )
