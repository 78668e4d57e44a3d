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
- **Drift is no shape.** The ratio is only learnt from the first observations after n moved far;
  later ones, and those after small moves, only move the level. Else a worker that gets slower while
  its share gets smaller would seem to have a large fixed part, and would never be relieved.
- **Outliers and changes.** A step that is further from its prediction than `OUTLIER` standard errors
  teaches nothing: a pause moves no estimate. `WINDOW` steps in a row that are beyond `CHANGE` on the
  same side are no accident: the worker's speed is set anew, by what those steps say.
- **First steps.** The first steps of a worker, and the first at a new n, pay for allocations and
  kernels that the following ones find ready: they are not observations.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gangline.planning.allocation.bounds import Floats, Shares

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
GREATEST_MOVE = 0.5
"""By what fraction one observation moves the predicted time, at most."""
LEAST_CONTRAST = 0.2
"""How far n must move, in logarithms, for the ratio a/b to be learnt."""
CONTRAST_STEPS = 20
"""In how many observations after that it is learnt."""
OUTLIER = 3.5
CHANGE = 2.2
CHANGE_PER_LOG_WORKER = 0.1
"""The more workers there are, the more often one of them is slow in a row by mere chance."""
WINDOW = 3
"""How many observations in a row make a change: fewer may be pauses."""
_LEAST_WEIGHT = 1e-9
"""No worker is believed to be slower than the fastest one by more than this."""
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
    contrast: Floats
    """|log| of the ratio of that n to the n observed before it."""
    since_contrast: Shares
    """Observations since n last moved."""
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
    """Of the last `WINDOW` observations, the distance from the prediction, in standard errors."""
    log_ratios: tuple[Floats, ...]
    """Of the last `WINDOW` observations, log(time / prediction)."""

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
        contrast=zeros,
        since_contrast=np.zeros(count, dtype=np.int64),
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


def assumed_costs(speeds: Speeds, weights: Floats) -> tuple[Floats, Floats]:
    """a and b of every worker; what to take them for where the worker has not been observed.

    `weights` are the speeds that the workers are believed to have. A worker that has not been
    observed is taken to be like the median of those that have, at its own weight. Where nobody has,
    only ratios count, and the unit of time is arbitrary.
    """
    known = speeds.observed > 0
    fixed_s, per_sample_s = 0.0, 1.0
    # Only ratios count; a weight that is next to nothing would make the costs infinite.
    weights = np.maximum(weights / weights.max(initial=_LEAST_WEIGHT), _LEAST_WEIGHT)
    if known.any():
        fixed_s = float(np.median((speeds.fixed_s * weights)[known]))
        per_sample_s = float(np.median((speeds.per_sample_s * weights)[known]))
    return (
        np.where(known, speeds.fixed_s, fixed_s / weights),
        np.where(known, speeds.per_sample_s, per_sample_s / weights),
    )


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
    after = _note_samples(speeds, n, reported, usable)
    after = _follow(after, n, t, usable & ~is_first)
    after = _begin(after, n, t, is_first)
    return _find_changes(after)


def _note_samples(
    speeds: Speeds, n: Floats, reported: NDArray[np.bool_], usable: NDArray[np.bool_]
) -> Speeds:
    """Remembers how many samples each worker had, and how far that is from what it had before."""
    before = speeds.settled_samples
    moved = usable & (n != before)
    ratio = np.where(moved & (before > 0), n / np.maximum(before, 1), 1.0)
    return msgspec.structs.replace(
        speeds,
        steps=speeds.steps + reported,
        last_samples=np.where(reported, n, speeds.last_samples),
        settled_samples=np.where(usable, n, before),
        contrast=np.where(moved, np.abs(np.log(ratio)), speeds.contrast),
        since_contrast=np.where(moved, 0, speeds.since_contrast + usable),
    )


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
    surprise = predicted * log_ratio / np.sqrt(variance)
    learns = where & (np.abs(surprise) < OUTLIER)
    has_contrast = (speeds.contrast > LEAST_CONTRAST) & (speeds.since_contrast < CONTRAST_STEPS)
    level_gain = (1 - noise / variance) / predicted
    gain_a = learns * np.where(has_contrast, ph_a / variance, a * level_gain)
    gain_b = learns * np.where(has_contrast, ph_b / variance, b * level_gain)
    error = predicted * np.clip(log_ratio, -GREATEST_MOVE, GREATEST_MOVE)
    a, b = _sensible(a + gain_a * error, b + gain_b * error, n, learns)
    return msgspec.structs.replace(
        speeds,
        observed=speeds.observed + learns,
        fixed_s=a,
        per_sample_s=b,
        # P − K·(P·h)ᵀ − (P·h)·Kᵀ + K·Kᵀ·variance, which holds for any gain K.
        fixed_variance=paa + gain_a * (gain_a * variance - 2 * ph_a),
        covariance=pab + gain_a * gain_b * variance - gain_a * ph_b - gain_b * ph_a,
        per_sample_variance=pbb + gain_b * (gain_b * variance - 2 * ph_b),
        noise_variance=_noise_variance(speeds, surprise, noise / variance, where),
        surprises=_pushed(speeds.surprises, surprise, where),
        log_ratios=_pushed(speeds.log_ratios, log_ratio, where),
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


def _pushed(
    window: tuple[Floats, ...], newest: Floats, where: NDArray[np.bool_]
) -> tuple[Floats, ...]:
    """The window moved on by one, for the workers `where`."""
    moved = (*window[1:], newest)
    if where.all():
        return moved
    return tuple(np.where(where, new, old) for new, old in zip(moved, window, strict=True))


def _find_changes(speeds: Speeds) -> tuple[Speeds, Floats]:
    """Sets the speed anew where all of the last observations surprised in the same direction."""
    count = len(speeds.fixed_s)
    limit = CHANGE + CHANGE_PER_LOG_WORKER * math.log(count)
    slower = np.minimum.reduce(speeds.surprises) > limit
    faster = np.maximum.reduce(speeds.surprises) < -limit
    changed = slower | faster
    if not changed.any():
        return speeds, np.ones(count)
    mean = np.mean(speeds.log_ratios, axis=0)
    factor = np.where(changed, np.exp(mean), 1.0)
    a, b = speeds.fixed_s * factor, speeds.per_sample_s * factor
    level = np.where(changed, speeds.noise_variance / WINDOW, 0.0)
    after = msgspec.structs.replace(
        speeds,
        observed=np.where(changed, WINDOW, speeds.observed),
        fixed_s=a,
        per_sample_s=b,
        fixed_variance=factor**2 * speeds.fixed_variance + level * a * a,
        covariance=factor**2 * speeds.covariance + level * a * b,
        per_sample_variance=factor**2 * speeds.per_sample_variance + level * b * b,
        surprises=tuple(np.where(changed, 0.0, row) for row in speeds.surprises),
        log_ratios=tuple(np.where(changed, 0.0, row) for row in speeds.log_ratios),
    )
    return after, factor
