# SPDX-License-Identifier: Apache-2.0
"""How long the gradients' first exchange will take, by a few small ones among the founders.

Over a slow network it may take minutes. What a probe of at most a second says is enough to see that:
with what each worker computes in its first step, the coordinator can tell who is better left out.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from gangline.collectives import meet

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.collectives import Group

LEAST_BYTES = 1 << 20
"""Smaller gradients are not worth a probe."""
MOST_S = 1.0
ENOUGH_S = 0.1
"""An exchange that takes so long says what a longer one would take."""
_FIRST_BYTES = 16 << 10
_MOST_BYTES = 16 << 20
_GROWTH = 4
_MICROSECONDS = 1e6


def expect_exchange_s(
    group: Group, num_bytes: int, *, now: Callable[[], float] = time.perf_counter
) -> float:
    """How long an exchange of so many bytes takes in this group; all members come to the same.

    Exchanges of 16 KiB, and of four times as much each time, until one takes long enough, or the next
    might take too long. What they take beyond the bytes, an exchange of everything takes once.
    """
    meet(group)
    begun_s, size = now(), _FIRST_BYTES
    took: list[tuple[int, float]] = []
    while True:
        own_s = now()
        group.all_reduce(torch.zeros(size // 4))
        took_s, spent_s = _agree(group, now() - own_s, now() - begun_s)
        took.append((size, took_s))
        size *= _GROWTH
        is_enough = took_s >= ENOUGH_S or size > min(num_bytes, _MOST_BYTES)
        if is_enough or spent_s + 2 * _GROWTH * took_s > MOST_S:
            return _extrapolated(took, num_bytes)


def _agree(group: Group, *seconds: float) -> tuple[float, ...]:
    """The longest of all members' times."""
    header = np.array([math.ceil(one * _MICROSECONDS) for one in seconds], dtype=np.int64)
    group.all_reduce(torch.zeros(1), header)
    return tuple((header / _MICROSECONDS).tolist())


def _extrapolated(took: list[tuple[int, float]], num_bytes: int) -> float:
    size, took_s = took[-1]
    slope = took_s / size
    if len(took) > 1:
        before, before_s = took[-2]
        slope = min(max((took_s - before_s) / (size - before), 0.0), slope)
    return took_s + slope * max(num_bytes - size, 0)
