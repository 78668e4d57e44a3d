# SPDX-License-Identifier: Apache-2.0
"""Positions as gaps in Golomb-Rice code: few bits where every position is about equally likely.

With a fraction p of all positions, a gap g − 1 = q·2ᵇ + r is written as q in unary and r in b bits,

    b = max(0, 1 + ⌊log₂(ln(φ − 1)/ln(1 − p))⌋)      φ = (1 + √5)/2

which takes b + 1/(1 − (1 − p)^(2ᵇ)) bits on average (`spec.compression_format`). All unary parts come
first and all remainders after them, so that neither needs to be read bit by bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gangline.spec.errors import ExchangeError

if TYPE_CHECKING:
    from gangline.collectives.compression.codec import Bytes

Positions = npt.NDArray[np.int64]


def encode(positions: Positions, *, bits: int) -> Bytes:
    """Ascending positions as bytes."""
    gaps = np.diff(positions, prepend=-1) - 1
    quotients = gaps >> bits
    unary = np.ones(int(quotients.sum()) + len(quotients), dtype=np.uint8)
    unary[np.cumsum(quotients + 1) - 1] = 0
    shifts = np.arange(bits - 1, -1, -1)
    remainders = (gaps[:, None] >> shifts & 1).astype(np.uint8)
    return np.packbits(np.concatenate([unary, remainders.reshape(-1)]))


def decode(code: Bytes, *, count: int, bits: int, length: int) -> Positions:
    """The positions, `count` of them, all below `length`."""
    stream = np.unpackbits(code)
    ends = np.flatnonzero(stream == 0)[:count]
    start = int(ends[-1]) + 1 if len(ends) else 0
    if len(ends) < count or len(code) != -(-(start + count * bits) // 8):
        raise ExchangeError(
            f"a corrupt message: {len(code)} bytes do not hold {count} positions; all members must "
            "use the same compression of the same version"
        )
    quotients = np.diff(ends, prepend=-1) - 1
    digits = stream[start : start + count * bits].reshape(count, bits).astype(np.int64)
    remainders = digits @ (1 << np.arange(bits - 1, -1, -1, dtype=np.int64))
    positions = np.cumsum((quotients << bits) + remainders + 1) - 1
    if count and positions[-1] >= length:
        raise ExchangeError(f"a corrupt message: position {positions[-1]} of {length} elements")
    return positions
