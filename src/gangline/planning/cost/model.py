# SPDX-License-Identifier: Apache-2.0
"""The cost model: every predicted second of a plan comes from here.

Computing. Node i takes aᵢ + bᵢ·nᵢ seconds for nᵢ samples (`fixed_s`, `per_sample_s`); a step waits for
the slowest. b is multiplied by the operation ratio r_b where the job's samples cost more than the
profile's.

Exchanging n bytes among p members costs, with

    α  seconds per message, however small (latency)
    β  seconds per byte on the way (1 / bandwidth of the worst link that is used)
    ᾱ, β̄  the same of the mean link on the way round a ring
    γ  seconds per byte to add what was received

| topology | reduce to the leader | back from the leader | all-reduce |
|---|---|---|---|
| ring | round + ((p−1)/p)nγ | round | as to the leader |
| halving-doubling | 2⌈log₂p⌉α + 2((p−1)/p)nβ + ((p−1)/p)nγ | the same without γ | as to the leader |
| tree | ⌈log₂p⌉(α + nβ + nγ) | ⌈log₂p⌉(α + nβ) | both |
| parameter server | α + max(nβ_w, (p−1)nβ_s) + (p−1)nγ | α + max(nβ_w, (p−1)nβ_s) | both |

where a round of the ring is max(α + 2((p−1)/p)nβ, 2(p−1)ᾱ + 2((p−1)/p)nβ̄). Where all links are alike
that is the usual 2(p−1)α + 2((p−1)/p)nβ. Otherwise every part of the gradient still goes round over
good and bad links, and takes as long as the mean of them makes it; or, if that takes longer, the worst
link carries one part after another without a pause. A ring reduces to a leader by a reduce-scatter and
a gather, which cost as much as a reduce-scatter and an all-gather.

Halving-doubling with p not a power of two adds 2(α + nβ) + nγ. β_w is the worst worker's way to the
server and β_s the server's own, which carries everybody's bytes; or, where some of the ways share a
link, what that link makes of it.

A hierarchy sends a unit up through its levels, across at the top, and back. Groups of one level work
at the same time; units follow each other, so that k units through levels that take uₗ each need

    Σₗ uₗ + (k − 1)·maxₗ uₗ

where levels over links of one magnitude count as one: a leader takes part in both, and its way out is
shared.

Compression makes n smaller by its factor and adds the codec's seconds. Overlap hides what travels
while the backward pass still computes; at least the last unit is never hidden:

    step = compute + max(exchange/k, exchange − overlap·compute) + other

What a step takes besides (loading, the optimizer) is `other`, and 0 where nobody measured it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gangline.spec.errors import UsageError
from gangline.spec.plan import SOLO, TOPOLOGIES, Prediction


class LinkCost(NamedTuple):
    """α, β and γ of a group of like members, and β of its server."""

    latency_s: float
    s_per_byte: float
    reduce_s_per_byte: float = 0.0
    server_s_per_byte: float | None = None
    """None: the server's link is like the others'."""
    mean_latency_s: float | None = None
    """Of the links of a ring; None: they are alike."""
    mean_s_per_byte: float | None = None
    """Of the links of a ring; None: they are alike."""


class TwoWays(NamedTuple):
    """The time of one unit at one level of a hierarchy."""

    up_s: float
    back_s: float

    @property
    def total_s(self) -> float:
        return self.up_s + self.back_s


def level_s(topology: str, num_members: int, *, num_bytes: float, link: LinkCost) -> TwoWays:
    """Reducing to the leader and spreading the result again, below the top of a hierarchy."""
    p, n = num_members, num_bytes
    if p <= 1 or topology == SOLO:
        return TwoWays(0.0, 0.0)
    alpha, beta, gamma = link.latency_s, link.s_per_byte, link.reduce_s_per_byte
    rounds, part = math.ceil(math.log2(p)), (p - 1) / p * n
    match topology:
        case "ring":
            back = _round_s(link, p, num_bytes=n)
            return TwoWays(back + part * gamma, back)
        case "halving-doubling":
            back = 2 * rounds * alpha + 2 * part * beta
            odd = 0.0 if p == 1 << rounds else 2 * (alpha + n * beta)
            odd_reduce = 0.0 if p == 1 << rounds else n * gamma
            return TwoWays(back + odd + part * gamma + odd_reduce, back + odd)
        case "tree":
            back = rounds * (alpha + n * beta)
            return TwoWays(back + rounds * n * gamma, back)
        case "parameter-server":
            server = beta if link.server_s_per_byte is None else link.server_s_per_byte
            back = alpha + max(n * beta, (p - 1) * n * server)
            return TwoWays(back + (p - 1) * n * gamma, back)
    raise UsageError(f"no topology {topology!r}; there are {', '.join(TOPOLOGIES)}")


def _round_s(link: LinkCost, num_members: int, *, num_bytes: float) -> float:
    """All parts of a tensor twice round a ring: as slow as its mean link, or as its worst one."""
    count, part = num_members - 1, (num_members - 1) / num_members * num_bytes
    alpha, beta = link.latency_s, link.s_per_byte
    mean_alpha = alpha if link.mean_latency_s is None else link.mean_latency_s
    mean_beta = beta if link.mean_s_per_byte is None else link.mean_s_per_byte
    return max(alpha + 2 * part * beta, 2 * count * mean_alpha + 2 * part * mean_beta)


def all_reduce_s(topology: str, num_members: int, *, num_bytes: float, link: LinkCost) -> float:
    """Everybody has the sum: the exchange at the top of a hierarchy, or of a flat group."""
    ways = level_s(topology, num_members, num_bytes=num_bytes, link=link)
    # A reduce-scatter is followed by an all-gather instead of a gather: nothing is left to spread.
    return ways.up_s if topology in {"ring", "halving-doubling"} else ways.total_s


def pipelined_s(path_s: float, bottleneck_s: float, *, num_units: int) -> float:
    """k units through levels whose times sum to `path_s`, the slowest taking `bottleneck_s`."""
    return path_s + (num_units - 1) * bottleneck_s


def predict_step(
    compute_s: float, exchange_s: float, *, overlap: float, num_units: int, other_s: float = 0.0
) -> Prediction:
    """What is left of the exchange when part of it goes on during the computing."""
    hidden_s = min(exchange_s * (1 - 1 / num_units), overlap * compute_s)
    return Prediction(
        compute_s=compute_s,
        exchange_s=exchange_s,
        hidden_s=hidden_s,
        step_s=compute_s + exchange_s - hidden_s + other_s,
        other_s=other_s,
    )
