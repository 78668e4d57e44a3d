# SPDX-License-Identifier: Apache-2.0
"""Fits the speeds of an emulated cluster to the cores of the machine that emulates it.

If the speeds add up to as much as the cores can give, the machine itself becomes the straggler:
workers wait for a core instead of for each other, and nothing that is measured means anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

USABLE_FRACTION = 0.36
"""Of the cores, what the workers may use together. The rest is for the exchange, the data loaders
and chance: at 0.9 computing became 25 to 40 % slower when all ran at once, at 0.36 hardly so."""


class ScaledSpeeds(NamedTuple):
    """Speeds that this machine can emulate, and what the asked ones were multiplied with."""

    speeds: tuple[float, ...]
    scale: float


def scale_speeds(speeds: Sequence[float], cores: int) -> ScaledSpeeds:
    """Multiplies all speeds by one factor, at most 1, so that they fit the cores.

    Speeds that are all 1 are not emulated, so there is nothing to scale.
    """
    if not speeds or cores < 1:
        raise UsageError(f"scaling needs speeds and at least one core, not {speeds!r} on {cores}")
    if all(speed == 1 for speed in speeds):
        return ScaledSpeeds(tuple(speeds), 1.0)
    scale = min(1.0, USABLE_FRACTION * cores / sum(speeds))
    return ScaledSpeeds(tuple(speed * scale for speed in speeds), scale)


def describe_scale(asked: Sequence[float], *, scale: float, cores: int) -> str:
    """What was done to the speeds, as a sentence for people; empty where nothing is emulated."""
    if all(speed == 1 for speed in asked):
        return ""
    text = f"emulating {len(asked)} nodes of speed {', '.join(f'{speed:g}' for speed in asked)}"
    if scale == 1:
        return f"{text} on {cores} cores, not scaled"
    return f"{text} on {cores} cores: all scaled by {scale:.3g}, or the cores would be the limit"
