# SPDX-License-Identifier: Apache-2.0
"""When measured speeds justify a new cut of the global batch, and which.

A step takes as long as its slowest worker. Under the present shares that is predicted to be
T = maxᵢ (aᵢ + bᵢ·nᵢ), under the best ones T'. But each prediction has a standard error eᵢ, and the
largest of uncertain numbers tends to be one that is overestimated. So the present cut is judged by

    T₀ = maxᵢ (aᵢ + bᵢ·nᵢ − z·eᵢ),

what it takes even so, and is replaced only where 1 − T'/T₀ is above the minimum gain. With m(W) the
expected largest of W standard normal numbers, there are two values of z:

- `doubtful`, z = m(W)/2, right after something was learnt: when a worker's speed was found changed,
  and when a cut made from few observations can be looked at again because their number has doubled
  (3, 6, 12, …). So a cut gets refined as fast as knowledge grows, in ever fewer steps.
- `certain`, z = m(W) + 1.7, at all other times, and for the cut that a run begins with. Noise alone
  hardly ever passes this.

No share grows more than fourfold at once: further away from what was measured, a + b·n is a guess.
Where one wants to, the gain is that of the cut which it is on the way to.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.planning.allocation.balanced import balanced, slowest_s
from gangline.planning.allocation.bounds import Shares

if TYPE_CHECKING:
    from gangline.control.options import ControlOptions
    from gangline.control.shares.speeds import Speeds

SETTLED = 3
"""Observations of every worker that a cut needs."""
_MARGIN = 1.7
_GROWTH = 4


class Recut(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A better cut, and why it is better."""

    shares: Shares
    slowest: int
    """The rank of the worker that the present cut waits for."""
    present_s: float
    """T: the predicted step time under the present shares."""
    least_s: float
    """T₀: what it takes even if the estimates are that far off."""
    predicted_s: float
    """T': the predicted step time under the new shares."""

    @property
    def gain(self) -> float:
        """By what fraction the step gets shorter, as predicted."""
        return 1 - self.predicted_s / self.present_s

    @property
    def least_gain(self) -> float:
        """By what fraction it gets shorter even so."""
        return 1 - self.predicted_s / self.least_s


def is_worth_another_look(observations: int, *, at_last_look: int) -> bool:
    """Whether enough was learnt since the newest cut was made or last looked at.

    `at_last_look` is 0 for a cut that was not made from observations.
    """
    has_changed = observations < at_last_look
    has_doubled = at_last_look > 0 and observations >= 2 * at_last_look
    return has_changed or has_doubled


def needed_certainty(count: int, *, is_doubtful: bool) -> float:
    """z, in standard errors, for `count` workers."""
    # Blom's approximation of the expected largest of `count` standard normal numbers.
    largest = NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
    return largest / 2 if is_doubtful else largest + _MARGIN


def find_recut(
    speeds: Speeds,
    shares: Shares,
    *,
    max_samples: Shares,
    options: ControlOptions,
    certainty: float,
) -> Recut | None:
    """The best cut, if it is better than the present `shares` beyond doubt; else None."""
    present_s = speeds.predicted_s(shares)
    least_s = float((present_s - certainty * speeds.standard_error_s(shares)).max())
    if least_s * (1 - options.minimum_gain) <= _bound_s(speeds, options.global_batch):
        return None
    reach = np.where(shares > 0, _GROWTH * shares, options.global_batch)
    best = balanced(
        options.global_batch,
        speeds.fixed_s,
        speeds.per_sample_s,
        minimum=options.minimum,
        maximum=np.minimum(max_samples, reach),
    )
    recut = Recut(
        shares=best,
        slowest=int(present_s.argmax()),
        present_s=float(present_s.max()),
        least_s=least_s,
        predicted_s=slowest_s(best, speeds.fixed_s, speeds.per_sample_s),
    )
    if recut.least_gain > options.minimum_gain:
        return recut
    # A share that may grow to four times itself only may have far to go: the first moves of it gain
    # little, and still they are on the way.
    is_on_the_way = bool(((best == reach) & (best > shares)).any())
    return recut if is_on_the_way and _is_worth(recut, speeds, max_samples, options) else None


def _is_worth(recut: Recut, speeds: Speeds, max_samples: Shares, options: ControlOptions) -> bool:
    """Whether the cut without that limit is better than the present one beyond doubt."""
    ideal = balanced(
        options.global_batch,
        speeds.fixed_s,
        speeds.per_sample_s,
        minimum=options.minimum,
        maximum=max_samples,
    )
    ideal_s = slowest_s(ideal, speeds.fixed_s, speeds.per_sample_s)
    return 1 - ideal_s / recut.least_s > options.minimum_gain


def _bound_s(speeds: Speeds, global_batch: int) -> float:
    """A time that no cut can beat: all finish together, were shares any real numbers.

    It costs two sums, so that the exact cut of ten thousand workers is sought only where it may
    help.
    """
    rate = 1 / speeds.per_sample_s
    return float((global_batch + np.sum(speeds.fixed_s * rate)) / rate.sum())
