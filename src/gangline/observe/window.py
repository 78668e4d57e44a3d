# SPDX-License-Identifier: Apache-2.0
"""What a committed step used."""

from __future__ import annotations

import msgspec


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One committed step: the samples start … stop - 1 of the epoch's order."""

    step: int
    epoch: int
    start: int
    stop: int
    samples: dict[int, int]
    """How many of them each worker computed, as far as it lived to tell."""
    steps: int = 1
    """How many steps it stands for, from `step` on, where a log sums them up."""
    members: tuple[int, ...] = ()
    """Who took part; empty where that is not known."""
