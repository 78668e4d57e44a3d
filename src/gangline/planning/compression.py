# SPDX-License-Identifier: Apache-2.0
"""Which compression makes an exchange fastest: bytes saved on the link against seconds spent on them.

With n elements, p members, α and β as in `cost`, m bytes per message, and e and d seconds to encode and
to decode an element:

| how | seconds |
|---|---|
| as it is (a ring) | 2(p−1)α + 2((p−1)/p)·4n·β + ((p−1)/p)·4n·γ |
| messages that everybody gets | (p−1)α + (p−1)·m·β + n·e + p·n·d |
| two thin matrices (PowerSGD) | 4(p−1)α + 2((p−1)/p)·m·β + n·e |
| half precision, more than 3 members | 2(p−1)α + ((p−1)/p)·6n·β + n·e |

What a codec leaves out is not in these seconds: it costs steps, not time per step. So the candidates
stand in the order of how much they leave out, and one that leaves out more must be worth it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gangline.spec.exchange import compression as kinds
from gangline.spec.exchange.compression import Compression
from gangline.spec.exchange.compression_format import (
    ELEMENT_BYTES,
    is_shorter,
    sent_bytes,
    sums_halves,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.planning.cost.model import LinkCost

MARGIN = 0.1
"""By what part a compression that leaves out more must be faster."""
CANDIDATES = tuple(
    Compression.parse(name) for name in ("none", "bf16", "8-bit", "powersgd(4)", "top-k(0.01)")
)
"""What is chosen from, in the order of what it leaves out."""


class CodecCost(NamedTuple):
    """Seconds per element on one core."""

    encode_s: float
    """Of PowerSGD: both ways, per rank."""
    decode_s: float


CODEC_COSTS = {
    kinds.NONE: CodecCost(0.0, 0.0),
    kinds.FP16: CodecCost(0.5e-9, 1.2e-9),
    kinds.BF16: CodecCost(0.5e-9, 1.2e-9),
    kinds.EIGHT_BIT: CodecCost(5e-9, 6e-9),
    kinds.ONE_BIT: CodecCost(8e-9, 6e-9),
    kinds.TERNGRAD: CodecCost(6e-9, 3e-9),
    kinds.TOP_K: CodecCost(12e-9, 0.7e-9),
    kinds.SPARSE_BINARY: CodecCost(35e-9, 1e-9),
    kinds.POWERSGD: CodecCost(4e-9, 0.0),
}
"""As `benchmarks/codec_costs.py` measures them; a machine of another speed scales them all."""


class Choice(NamedTuple):
    """The compression for one group, and what it is expected to save."""

    compression: Compression
    exchange_s: float
    dense_s: float
    """What the exchange takes as it is."""


def exchange_s(
    compression: Compression, *, num_elements: int, num_members: int, link: LinkCost
) -> float:
    """How long an exchange takes."""
    n, p = num_elements, num_members
    if p <= 1:
        return 0.0
    sent = sent_bytes(compression, n, num_members=p)
    reduce_s = (p - 1) / p * ELEMENT_BYTES * n * link.reduce_s_per_byte
    if not is_shorter(compression, n, num_members=p):
        return 2 * (p - 1) * link.latency_s + sent * link.s_per_byte + reduce_s
    cost = CODEC_COSTS[compression.kind]
    if compression.kind == kinds.POWERSGD:
        rounds, codec_s = 4, n * cost.encode_s * compression.number
    elif sums_halves(compression, p):
        rounds, codec_s = 2, n * cost.encode_s + reduce_s
    else:
        # A message whose size varies is announced first.
        rounds = 2 if compression.kind == kinds.SPARSE_BINARY else 1
        codec_s = n * (cost.encode_s + p * cost.decode_s)
    return rounds * (p - 1) * link.latency_s + sent * link.s_per_byte + codec_s


def choose(
    num_elements: int,
    *,
    num_members: int,
    link: LinkCost,
    candidates: Sequence[Compression] = CANDIDATES,
) -> Choice:
    """The candidate to take: a later one beats the best before it by `MARGIN`, or is not taken."""

    def seconds(compression: Compression) -> float:
        return exchange_s(
            compression, num_elements=num_elements, num_members=num_members, link=link
        )

    best = candidates[0]
    for candidate in candidates[1:]:
        if seconds(candidate) < (1 - MARGIN) * seconds(best):
            best = candidate
    return Choice(best, seconds(best), seconds(Compression()))
