# SPDX-License-Identifier: Apache-2.0
"""How large compressed exchanges are: what members, planners and simulators must agree on.

A float32 tensor of n elements is shortened to, in bytes:

| compression | bytes |
|---|---|
| fp16, bf16 | 2n |
| 8-bit | n, and 8 per chunk (least and greatest element) |
| 1-bit | n/8, and 8 per chunk (mean of either sign) |
| terngrad | n/4, and 4 per chunk (scale) |
| top-k(f) | 8 per element that is sent, f·n of them (value and position) |
| sparse-binary(f) | 8, and about `position_bits(f)`/8 per element that is sent |
| powersgd(r) | 4r(a + b), for a matrix of a × b ≥ n elements |
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from gangline.spec.exchange import compression as kinds

if TYPE_CHECKING:
    from gangline.spec.exchange.compression import Compression

ELEMENT_BYTES = 4
CHUNK = 2048
"""How many elements share a scale: few enough that they are alike, and the scale costs little."""
FRAME_BYTES = 16
"""What stands in front of a message."""
GATHERED_HALVES = 3
"""Up to so many members, half precision is sent to all of them. With more it is summed on the way:
then sums travel as float32, and only their result as 16 bits."""
_GOLDEN = (1 + math.sqrt(5)) / 2


class Shape(NamedTuple):
    """The matrix that a flat tensor is taken as, nearly square; its last elements may be padding."""

    height: int
    width: int

    @classmethod
    def of(cls, num_elements: int) -> Shape:
        """For one element at least."""
        height = math.isqrt(num_elements - 1) + 1
        return cls(height, -(-num_elements // height))


def num_chunks(num_elements: int) -> int:
    """How many chunks there are."""
    return -(-num_elements // CHUNK)


def num_kept(fraction: float, num_elements: int) -> int:
    """How many elements are sent: the fraction, and one at least."""
    return min(num_elements, max(1, round(fraction * num_elements)))


def remainder_bits(fraction: float) -> int:
    """The b of Golomb's code for gaps between a fraction of all positions."""
    return max(0, 1 + math.floor(math.log2(math.log(_GOLDEN - 1) / math.log1p(-fraction))))


def position_bits(fraction: float) -> float:
    """What one position takes on average in this code."""
    bits = remainder_bits(fraction)
    return bits + 1 / -math.expm1(2**bits * math.log1p(-fraction))


def message_bytes(compression: Compression, num_elements: int) -> float:
    """What a tensor is shortened to, without its frame; on average where it varies."""
    n, chunks = num_elements, num_chunks(num_elements)
    match compression.kind:
        case kinds.FP16 | kinds.BF16:
            return 2 * n
        case kinds.EIGHT_BIT:
            return n + 8 * chunks
        case kinds.ONE_BIT:
            return -(-n // 8) + 8 * chunks
        case kinds.TERNGRAD:
            return 2 * -(-n // 8) + 4 * chunks
        case kinds.TOP_K:
            return 8 * num_kept(compression.number, n)
        case kinds.SPARSE_BINARY:
            return 8 + num_kept(compression.number, n) * position_bits(compression.number) / 8
        case kinds.POWERSGD if n:
            return ELEMENT_BYTES * compression.number * sum(Shape.of(n))
    return ELEMENT_BYTES * n


def ring_bytes(num_bytes: float, *, num_members: int) -> float:
    """What one member sends for a ring to sum so many bytes."""
    return 2 * (num_members - 1) / num_members * num_bytes


def sums_halves(compression: Compression, num_members: int) -> bool:
    """Whether half precision is summed on the way."""
    return compression.kind in (kinds.FP16, kinds.BF16) and num_members > GATHERED_HALVES


def sent_bytes(compression: Compression, num_elements: int, *, num_members: int) -> float:
    """What one member sends in one exchange, and never more than without compression."""
    dense = ring_bytes(ELEMENT_BYTES * num_elements, num_members=num_members)
    if compression.is_none or num_elements == 0:
        return dense
    if sums_halves(compression, num_members):
        return ring_bytes((ELEMENT_BYTES + 2) / 2 * num_elements, num_members=num_members)
    size = message_bytes(compression, num_elements)
    if compression.kind == kinds.POWERSGD:
        return min(dense, ring_bytes(size, num_members=num_members))
    return min(dense, (num_members - 1) * (FRAME_BYTES + size))


def is_shorter(compression: Compression, num_elements: int, *, num_members: int) -> bool:
    """Whether compression sends fewer bytes; where it does not, tensors are sent as they are."""
    dense = ring_bytes(ELEMENT_BYTES * num_elements, num_members=num_members)
    return sent_bytes(compression, num_elements, num_members=num_members) < dense
