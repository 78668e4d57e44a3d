# SPDX-License-Identifier: Apache-2.0
"""Schemes whose chunks follow from their number and from what remains, as their papers have them.

A formula is made for a loop, and gives the size of chunk i = 0, 1, …, while R items remain. N items,
P workers, b = ⌊i/P⌋ the batch of P chunks. What comes out is raised to the grain and cut to what
remains by whoever asks (`bounded.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gangline.scheduling.chunks import Loop

Formula: TypeAlias = Callable[[int, int], float]
"""(i, R) → size, which is rounded up."""


def round_up(size: float) -> int:
    """⌈size⌉, where an error of rounding in `size` does not count as another item."""
    return math.ceil(size - 1e-9)


def static(loop: Loop) -> Formula:
    """⌈N/P⌉: one chunk for each worker."""
    return lambda i, left: loop.total / loop.workers


def self_scheduling(loop: Loop) -> Formula:
    """1: so each chunk is a grain."""
    return lambda i, left: 1


def guided(loop: Loop) -> Formula:
    """⌈R/P⌉ (Polychronopoulos and Kuck, 1987)."""
    return lambda i, left: left / loop.workers


def trapezoid(loop: Loop) -> Formula:
    """From f = ⌈N/2P⌉ down to 1 by a constant δ (Tzeng and Ni, 1993)."""
    first, decrement = trapezoid_slope(loop)
    return lambda i, left: first - decrement * i


def trapezoid_slope(loop: Loop) -> tuple[int, float]:
    """f and δ: with the last chunk l = 1, n = ⌈2N/(f + l)⌉ chunks, δ = (f − l)/(n − 1)."""
    first = max(1, math.ceil(loop.total / (2 * loop.workers)))
    count = math.ceil(2 * loop.total / (first + 1))
    return first, (first - 1) / (count - 1) if count > 1 else 0.0


def factoring2(loop: Loop) -> Formula:
    """⌈½^(b+1)·N/P⌉: each batch is half of what remains (Hummel, Schonberg and Flynn, 1992)."""
    return lambda i, left: halved(loop.total / loop.workers, i // loop.workers + 1)


def halved(value: float, times: int) -> float:
    """`value` · ½^`times`."""
    return math.ldexp(value, -times)


def trapezoid_factoring(loop: Loop) -> Formula:
    """P equal chunks, each the mean of the P trapezoid chunks in their place (Chronopoulos, 2001)."""
    first, decrement = trapezoid_slope(loop)
    middle = (loop.workers - 1) / 2
    return lambda i, left: first - decrement * (i - i % loop.workers + middle)


def stages(loop: Loop) -> int:
    """B, how many batches factoring by halves needs for the loop."""
    batch, done = 0, 0
    while done < loop.total:
        done += loop.workers * math.ceil(halved(loop.total / loop.workers, batch + 1))
        batch += 1
    return max(batch, 1)


def first_of_stages(loop: Loop) -> float:
    """c₀ = N/((2 + B)·P), with which increasing chunks begin."""
    return loop.total / ((2 + stages(loop)) * loop.workers)


def fixed_increase(loop: Loop) -> Formula:
    """⌊c₀ + b·A⌋, A = 2N(1 − B/(2 + B))/(P·B·(B − 1)), which sums to N (Philip and Das, 1997)."""
    count, first = stages(loop), first_of_stages(loop)
    grown = 2 * loop.total * (1 - count / (2 + count))
    step = grown / (loop.workers * count * (count - 1)) if count > 1 else 0.0
    return lambda i, left: math.floor(first + i // loop.workers * step)


def variable_increase(loop: Loop) -> Formula:
    """⌊c₀·(2 − ½^b)⌋ (Philip and Das, 1997)."""
    first = first_of_stages(loop)
    return lambda i, left: math.floor(first * (2 - halved(1, i // loop.workers)))


def performance_loop(loop: Loop, *, swr: float = 0.5) -> Formula:
    """P chunks of ⌈swr·N/P⌉, the static part, then guided (Shih, Yang and Tseng, 2007)."""
    return lambda i, left: (
        swr * loop.total / loop.workers if i < loop.workers else left / loop.workers
    )


def probabilistic(loop: Loop) -> Formula:
    """⌈R/(1.5·P)⌉, with all P expected to be idle (Girkar, Kejariwal et al., 2006)."""
    return lambda i, left: left / (1.5 * loop.workers)


def modified_fixed_size(loop: Loop) -> Formula:
    """One size, such that there are as many chunks as with FAC2: ⌊0.55 + T·ln 2/ln T⌋, T = ⌈N/P⌉."""
    each = math.ceil(loop.total / loop.workers)
    size = math.floor(0.55 + each * math.log(2) / math.log(each)) if each > 1 else 1
    return lambda i, left: size


def modified_static(loop: Loop) -> Formula:
    """⌈N/4P⌉: four chunks for each worker."""
    return lambda i, left: loop.total / (4 * loop.workers)


def expert_grain(loop: Loop) -> Formula:
    """⌊N/(2^(m+1)·P)⌋, m = ⌊0.618·log₂⌊N/P⌋⌋: one size for all, from N and P alone."""
    each = loop.total // loop.workers
    power = int(0.618 * math.log2(each)) if each > 1 else 0
    size = loop.total // (2 ** (power + 1) * loop.workers)
    return lambda i, left: size
