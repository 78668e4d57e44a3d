# SPDX-License-Identifier: Apache-2.0
"""The same schemes as DAPHNE's code computes them, where that is not what the papers say.

They are for comparisons: whoever has numbers from DAPHNE finds the same chunks here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gangline.scheduling.schemes import formulas

if TYPE_CHECKING:
    from gangline.scheduling.chunks import Loop
    from gangline.scheduling.schemes.formulas import Formula


def static(loop: Loop) -> Formula:
    """⌊N/P⌋, so that what is left over is one more chunk."""
    return lambda i, left: loop.total // loop.workers


def trapezoid(loop: Loop) -> Formula:
    """The decrement is cut to a whole number."""
    first, decrement = formulas.trapezoid_slope(loop)
    return lambda i, left: first - int(decrement) * i


def factoring2(loop: Loop) -> Formula:
    """⌈½^(b+1)·⌊N/P⌋⌉"""
    each = loop.total // loop.workers
    return lambda i, left: formulas.halved(each, i // loop.workers + 1)


def trapezoid_factoring(loop: Loop) -> Formula:
    """⌈R/2P⌉, which is guided with twice as many workers."""
    return lambda i, left: left / (2 * loop.workers)


def fixed_increase(loop: Loop) -> Formula:
    """c₀ + i·A, growing with every chunk, and by an A whose last factor was cut to 1."""
    count = formulas.stages(loop)
    first = math.ceil(formulas.first_of_stages(loop))
    step = math.ceil(2 * loop.total / (loop.workers * count * (count - 1))) if count > 1 else 0
    return lambda i, left: first + i * step


def variable_increase(loop: Loop) -> Formula:
    """c₀ times 0, 1, 2, 2, …: the first batch is of grains."""
    first = math.ceil(formulas.first_of_stages(loop))
    return lambda i, left: first * math.ceil(2 - formulas.halved(2, i // loop.workers))


def performance_loop(loop: Loop) -> Formula:
    """The static part ends by what remains rather than after P chunks."""
    return lambda i, left: (
        0.5 * loop.total / loop.workers if left > 0.5 * loop.total else left / loop.workers
    )


def modified_fixed_size(loop: Loop) -> Formula:
    """⌈T·ln 2/ln T⌉, T = (N + P − 1)/P"""
    each = (loop.total + loop.workers - 1) / loop.workers
    size = each * math.log(2) / math.log(each) if each > 1 else 1
    return lambda i, left: size


def modified_static(loop: Loop) -> Formula:
    """⌈⌊N/P⌋/4⌉"""
    return lambda i, left: loop.total // loop.workers / 4


def expert_grain(loop: Loop) -> Formula:
    """What AUTO comes to: the four chunks per worker of MSTATIC, not below the expert's grain."""
    grain = formulas.expert_grain(loop)
    return lambda i, left: max(loop.total // loop.workers / 4, grain(i, left))
