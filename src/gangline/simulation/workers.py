# SPDX-License-Identifier: Apache-2.0
"""Simulated workers: how long each of them takes for a step, all at once.

t = (a + b·n)·slowdown(step)·exp(σ·z) + pause,   z standard normal
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from gangline.planning.allocation.bounds import Floats, Shares
from gangline.simulation.links import Spell, factor_at


class Slowdown(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Some workers take `factor` times as long from one step to before another."""

    workers: NDArray[np.int64]
    from_step: int
    to_step: int
    factor: float


class SimulatedWorkers(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What is true of each worker; one entry per worker in each array."""

    fixed_s: Floats
    """a, at the start"""
    per_sample_s: Floats
    """b, at the start"""
    noise: Floats
    """σ"""
    log_drift: Floats
    """The logarithm of how many times as long a step takes as the one before it."""
    pause_probability: Floats
    """How likely a step is interrupted."""
    pause_s: Floats
    """How long it is then interrupted."""
    memory_bytes: Floats
    """Memory in use."""
    latency_s: Floats
    """Round trip to the coordinator."""
    slowdowns: tuple[Slowdown, ...] = ()
    link_slowdowns: tuple[Slowdown, ...] = ()
    spells: Mapping[int, tuple[Spell, ...]] = {}
    """Of those workers that have any."""
    first_step_factors: tuple[float, ...] = ()
    """How much longer the first steps take: memory is allocated, kernels are chosen."""

    def selected(self, rows: NDArray[np.int64]) -> SimulatedWorkers:
        """Some of the workers, in the order of `rows`; how much slower they get is asked of all."""
        return SimulatedWorkers(
            fixed_s=self.fixed_s[rows],
            per_sample_s=self.per_sample_s[rows],
            noise=self.noise[rows],
            log_drift=self.log_drift[rows],
            pause_probability=self.pause_probability[rows],
            pause_s=self.pause_s[rows],
            memory_bytes=self.memory_bytes[rows],
            latency_s=self.latency_s[rows],
            first_step_factors=self.first_step_factors,
        )

    def slowdown(self, step: int, *, now: float = 0.0) -> Floats:
        """How many times as long as at the start each worker takes, in a step that begins now."""
        factor = _slowed(np.exp(self.log_drift * step), self.slowdowns, step)
        for row, spells in self.spells.items():
            factor[row] *= factor_at(spells, now)
        return factor

    def link_slowdown(self, step: int) -> Floats:
        """How many times as long as at the start each worker's hops take."""
        return _slowed(np.ones(len(self.fixed_s)), self.link_slowdowns, step)

    def compute_s(
        self, samples: Shares, *, step: int, slowdown: Floats, rng: np.random.Generator
    ) -> Floats:
        """The measured time of each worker's step of `samples`."""
        factor, pause_s = self.chance(step=step, slowdown=slowdown, rng=rng)
        return (self.fixed_s + self.per_sample_s * samples) * factor + pause_s

    def chance(
        self, *, step: int, slowdown: Floats, rng: np.random.Generator
    ) -> tuple[Floats, Floats]:
        """How many times as long as it should each takes in a step, and for how long it pauses."""
        count = len(self.fixed_s)
        factor: Floats = slowdown * np.exp(self.noise * rng.standard_normal(count))
        if step < len(self.first_step_factors):
            factor = factor * self.first_step_factors[step]
        pause_s: Floats = np.zeros(count)
        if self.pause_probability.any():
            pause_s = self.pause_s * (rng.random(count) < self.pause_probability)
        return factor, pause_s


def _slowed(factor: Floats, slowdowns: tuple[Slowdown, ...], step: int) -> Floats:
    for slow in slowdowns:
        if slow.from_step <= step < slow.to_step:
            factor[slow.workers] *= slow.factor
    return factor
