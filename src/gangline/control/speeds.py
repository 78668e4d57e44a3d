# SPDX-License-Identifier: Apache-2.0
"""How fast each worker is: step time a + b·n, estimated on line, for all workers at once.

A worker's step of n samples is modelled as

    t = (a + b·n)·(1 + noise),   noise of relative variance σ²

and (a, b) follow its observations by a Kalman filter, one of two unknowns per worker, written out
over arrays. Four things make it fit for real machines:

- **Speed wanders, shape stays.** What changes during a run (heat, a neighbour) slows the fixed part
  and the samples alike. So between steps (a, b) gets uncertain along itself only: the level is
  forgotten within some tens of steps, the ratio a/b never.
- **Shape before there is variation.** While n is constant, a and b cannot be told apart. Then the
  ratio is the median of the workers that are known, or `FIRST_FIXED_FRACTION` of the first step, and
  is uncertain by `SHAPE_SPREAD`. Every re-cut moves n, the prediction for the new n tests the ratio,
  and the filter corrects it as far as the noise allows. No variation is made for its own sake.
- **Outliers and changes.** A step that is further from its prediction than `OUTLIER` standard errors
  teaches nothing: a pause moves no estimate. Three of five steps that are on the same side of
  `CHANGE` are no accident: the worker's speed is set anew, by what those steps say.
- **First steps.** The first steps of a worker, and the first at a new n, pay for allocations and
  kernels that the following ones find ready: they are not observations.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gangline.planning.bounds import Floats, Shares

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIRST_STEPS = 2
"""Steps of a worker that are not observed at all."""
FIRST_FIXED_FRACTION = 0.1
"""The fixed part of the first observed step, as long as nothing is known."""
SHAPE_SPREAD = 0.25
"""Standard error of that fraction."""
FIRST_NOISE = 0.1
"""σ before it has been measured."""
LEAST_NOISE, GREATEST_NOISE = 0.005, 0.5
WANDER = 0.002
"""Standard deviation of the relative change of speed from one step to the next."""
OUTLIER = 3.5
CHANGE = 2.5
CHANGE_PER_LOG_WORKER = 0.1
"""The more workers there are, the more often one of them is slow three times by mere chance."""
WINDOW = 5
"""Steps in which a change is looked for."""
MAJORITY = WINDOW // 2 + 1
LEAST_SLOPE = 0.02
"""b·n is at least this part of the step time: no worker computes samples for nothing."""


class Speeds(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What is known about each worker's speed. One entry per worker in each array."""

    steps: Shares
    """Steps reported by the worker."""
    observed: Shares
    """Observations that the estimate stands on: those since the last change."""
    last_samples: Floats
    """n of the last step."""
    settled_samples: Floats
    """n of the last observation."""
    fixed_s: Floats
    """a"""
    per_sample_s: Floats
    """b"""
    fixed_variance: Floats
    covariance: Floats
    per_sample_variance: Floats
    noise_variance: Floats
    """σ²"""
    surprises: tuple[Floats, ...]
    """The last `WINDOW` steps' distances from their predictions, in standard errors; 0 where there
    was no observation."""
    log_ratios: tuple[Floats, ...]
    """The last `WINDOW` steps' log(time / prediction)."""

    @property
    def noise(self) -> Floats:
        """σ of each worker."""
        return np.sqrt(self.noise_variance)

    def predicted_s(self, samples: Shares) -> Floats:
        """a + b·n of each worker."""
        return self.fixed_s + self.per_sample_s * samples

    def standard_error_s(self, samples: Shares) -> Floats:
        """The standard error of `predicted_s`."""
        variance = self.fixed_variance + samples * (
            2 * self.covariance + samples * self.per_sample_variance
        )
        return np.sqrt(np.maximum(variance, 0))


def unknown_speeds(count: int) -> Speeds:
    """The speeds of `count` workers of which nothing is known yet."""
    zeros, ones = np.zeros(count), np.ones(count)
    return Speeds(
        steps=np.zeros(count, dtype=np.int64),
        observed=np.zeros(count, dtype=np.int64),
        last_samples=zeros,
        settled_samples=zeros,
        fixed_s=zeros,
        per_sample_s=ones,
        fixed_variance=zeros,
        covariance=zeros,
        per_sample_variance=zeros,
        noise_variance=ones * FIRST_NOISE**2,
        surprises=(zeros,) * WINDOW,
        log_ratios=(zeros,) * WINDOW,
    )


def joined(known: Speeds, newcomers: Speeds) -> Speeds:
    """The workers of both, one after the other."""

    def both(name: str) -> Any:
        first, second = getattr(known, name), getattr(newcomers, name)
        if isinstance(first, tuple):
            return tuple(np.concatenate(pair) for pair in zip(first, second, strict=True))
        return np.concatenate((first, second))

    return Speeds(**{name: both(name) for name in Speeds.__struct_fields__})


def selected(known: Speeds, places: Shares) -> Speeds:
    """Some of the workers, in the order of `places`."""

    def some(name: str) -> Any:
        values = getattr(known, name)
        if isinstance(values, tuple):
            return tuple(one[places] for one in values)
        return values[places]

    return Speeds(**{name: some(name) for name in Speeds.__struct_fields__})


def observe(speeds: Speeds, samples: Shares, compute_s: Floats) -> tuple[Speeds, Floats]:
    """The speeds after one step, and by what factor each worker's step time was found changed.

    A worker without a report has NaN in `compute_s`. The factor is 1 where nothing changed.
    """
    reported = (compute_s > 0) & np.isfinite(compute_s) & (samples > 0)
    n = np.where(reported, samples, 1.0)
    t = np.where(reported, compute_s, 1.0)
    is_settled = (n == speeds.last_samples) | (n == speeds.settled_samples)
    usable = reported & (speeds.steps >= FIRST_STEPS) & is_settled
    is_first = usable & (speeds.observed == 0)
    following = usable & ~is_first
    after = _follow(speeds, n, t, following)
    after = _begin(after, n, t, is_first)
    after = msgspec.structs.replace(
        after,
        steps=speeds.steps + reported,
        last_samples=np.where(reported, n, speeds.last_samples),
        settled_samples=np.where(usable, n, speeds.settled_samples),
    )
    return _find_changes(after)


def _begin(speeds: Speeds, n: Floats, t: Floats, where: NDArray[np.bool_]) -> Speeds:
    """First observations: the level from the step itself, the shape from what others are like."""
    if not where.any():
        return speeds
    known = (speeds.observed > 0) & ~where
    ratio = (
        np.full_like(n, np.median(speeds.fixed_s[known] / speeds.per_sample_s[known]))
        if known.any()
        else n * FIRST_FIXED_FRACTION / (1 - FIRST_FIXED_FRACTION)
    )
    b = t / (ratio + n)
    a = ratio * b
    level, shape = FIRST_NOISE**2, (SHAPE_SPREAD * t) ** 2
    return msgspec.structs.replace(
        speeds,
        observed=speeds.observed + where,
        fixed_s=np.where(where, a, speeds.fixed_s),
        per_sample_s=np.where(where, b, speeds.per_sample_s),
        fixed_variance=np.where(where, level * a * a + shape, speeds.fixed_variance),
        covariance=np.where(where, level * a * b - shape / n, speeds.covariance),
        per_sample_variance=np.where(
            where, level * b * b + shape / (n * n), speeds.per_sample_variance
        ),
    )


def _follow(speeds: Speeds, n: Floats, t: Floats, where: NDArray[np.bool_]) -> Speeds:
    """One step of the filter for the workers `where`."""
    a, b = speeds.fixed_s, speeds.per_sample_s
    wander = np.where(where, WANDER**2, 0.0)
    paa = speeds.fixed_variance + wander * a * a
    pab = speeds.covariance + wander * a * b
    pbb = speeds.per_sample_variance + wander * b * b
    ph_a, ph_b = paa + n * pab, pab + n * pbb
    predicted = a + b * n
    noise = speeds.noise_variance * predicted**2
    variance = ph_a + n * ph_b + noise
    log_ratio = np.where(where, np.log(t / predicted), 0.0)
    # Steps are late by factors: in logarithms being twice as slow and twice as fast weigh the same.
    error = predicted * log_ratio
    surprise = error / np.sqrt(variance)
    learns = where & (np.abs(surprise) < OUTLIER)
    gain = np.where(learns, 1 / variance, 0.0)
    a, b = _sensible(a + gain * ph_a * error, b + gain * ph_b * error, n, learns)
    return msgspec.structs.replace(
        speeds,
        observed=speeds.observed + learns,
        fixed_s=a,
        per_sample_s=b,
        fixed_variance=paa - gain * ph_a * ph_a,
        covariance=pab - gain * ph_a * ph_b,
        per_sample_variance=pbb - gain * ph_b * ph_b,
        noise_variance=_noise_variance(speeds, surprise, noise / variance, where),
        surprises=(*speeds.surprises[1:], surprise),
        log_ratios=(*speeds.log_ratios[1:], log_ratio),
    )


def _sensible(a: Floats, b: Floats, n: Floats, where: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """The nearest a ≥ 0 and b > 0 that predict the same time for n."""
    t = a + b * n
    fixed = np.clip(a, 0, (1 - LEAST_SLOPE) * t)
    return np.where(where, fixed, a), np.where(where, (t - fixed) / n, b)


def _noise_variance(
    speeds: Speeds, surprise: Floats, noise_part: Floats, where: NDArray[np.bool_]
) -> Floats:
    """σ², moved towards what makes the surprises of variance 1; by outliers only so far."""
    rate = np.maximum(1 / (speeds.observed + 2), 0.02) * noise_part
    excess = np.minimum(surprise**2, OUTLIER**2) - 1
    moved = speeds.noise_variance * (1 + rate * excess)
    bounded = np.clip(moved, LEAST_NOISE**2, GREATEST_NOISE**2)
    return np.where(where, bounded, speeds.noise_variance)


def _num_beyond(window: tuple[Floats, ...], limit: float) -> NDArray[np.int8]:
    """In how many steps of the window each worker was beyond `limit`, on its side."""
    count = np.zeros(len(window[0]), dtype=np.int8)
    for row in window:
        count += row > limit if limit > 0 else row < limit
    return count


def _find_changes(speeds: Speeds) -> tuple[Speeds, Floats]:
    """Sets the speed anew where most of the last steps were surprising in the same direction."""
    count = len(speeds.fixed_s)
    limit = CHANGE + CHANGE_PER_LOG_WORKER * math.log(count)
    slower = _num_beyond(speeds.surprises, limit) >= MAJORITY
    faster = _num_beyond(speeds.surprises, -limit) >= MAJORITY
    changed = slower | faster
    if not changed.any():
        return speeds, np.ones(count)
    toward = np.where(slower, 1, -1)
    speaking = toward * np.stack(speeds.surprises) > CHANGE / 2
    mean = (np.stack(speeds.log_ratios) * speaking).sum(axis=0) / np.maximum(
        speaking.sum(axis=0), 1
    )
    factor = np.where(changed, np.exp(mean), 1.0)
    a, b = speeds.fixed_s * factor, speeds.per_sample_s * factor
    level = np.where(changed, speeds.noise_variance / MAJORITY, 0.0)
    after = msgspec.structs.replace(
        speeds,
        observed=np.where(changed, MAJORITY, speeds.observed),
        fixed_s=a,
        per_sample_s=b,
        fixed_variance=factor**2 * speeds.fixed_variance + level * a * a,
        covariance=factor**2 * speeds.covariance + level * a * b,
        per_sample_variance=factor**2 * speeds.per_sample_variance + level * b * b,
        surprises=tuple(np.where(changed, 0.0, row) for row in speeds.surprises),
        log_ratios=tuple(np.where(changed, 0.0, row) for row in speeds.log_ratios),
    )
    return after, factor
