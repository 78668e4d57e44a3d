# SPDX-License-Identifier: Apache-2.0
"""Water filling: the level at which vessels of unlike width together hold a given amount."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gangline.planning.allocation.bounds import Floats, Shares


def water_level(total: float, *, floor: Floats, rate: Floats, least: Shares, most: Shares) -> float:
    """The lowest T with Σᵢ clip(rateᵢ·(T − floorᵢ), leastᵢ, mostᵢ) = total, in closed form.

    The sum is piecewise linear in T and never falls. Worker i adds its rate to the slope from
    floorᵢ + leastᵢ/rateᵢ on and takes it back at floorᵢ + mostᵢ/rateᵢ, so sorting these corners
    gives the sum at every corner, and T lies on one line between two of them: O(n log n).

    Needs Σ least < total ≤ what the workers with a rate above 0 can bring it to.
    """
    moving = (rate > 0) & (most > least)
    base, pace = floor[moving], rate[moving]
    starts, stops = base + least[moving] / pace, base + most[moving] / pace
    corner = np.concatenate((starts, stops))
    order = np.argsort(corner, kind="stable")
    corner = corner[order]
    slope = np.cumsum(np.concatenate((pace, -pace))[order])
    held = least.sum() + np.concatenate(([0.0], np.cumsum(slope[:-1] * np.diff(corner))))
    # Rounding may leave the last corner a hair short of the total: then it is that last line.
    line = int(np.clip(np.searchsorted(held, total), 1, len(corner) - 1)) - 1
    return _level_on_line(
        total - least[~moving].sum(),
        corner[line],
        lines=(base, pace, starts, stops),
        ends=(least[moving], most[moving]),
    )


def _level_on_line(
    total: float,
    begin: float,
    *,
    lines: tuple[Floats, Floats, Floats, Floats],
    ends: tuple[Shares, Shares],
) -> float:
    """T on the line from `begin` on, from sums of its own: the running ones are rounded."""
    base, pace, starts, stops = lines
    rising = (starts <= begin) & (begin < stops)
    if not rising.any():
        return float(begin)
    resting = np.where(stops <= begin, ends[1], ends[0])[~rising].sum()
    return float((total - resting + (pace * base)[rising].sum()) / pace[rising].sum())
