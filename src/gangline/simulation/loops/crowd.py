# SPDX-License-Identifier: Apache-2.0
"""Who does a simulated loop: workers with speeds that vary, and what it costs to ask for work.

A worker's speed is constant within a spell, s·exp(σ·z) with z drawn anew for each, and 0 while it
pauses. It depends on the time alone, so that all ways of handing out a loop meet the same workers.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec
import numpy as np

from gangline.spec.errors import UsageError

SPELLS_AT_ONCE = 256


class Overheads(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk costs beside its items, in seconds of virtual time."""

    chunk_s: float = 20e-6
    """To ask for it, and begin it."""
    queue_s: float = 2e-6
    """For how long its queue serves nobody else."""
    steal_s: float = 10e-6
    """More, where it is stolen."""
    far_steal_s: float = 30e-6
    """More, where it is stolen from another group."""
    remote: float = 0.0
    """By how much longer an item takes outside of the group where its data lie: 0.1 is a tenth."""


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    """The workers."""

    speeds: tuple[float, ...]
    """How many seconds of cost each does per second."""
    groups: tuple[int, ...] = ()
    """The group of each: a package, a node; one for all, if not given."""
    noise: float = 0.0
    """σ"""
    spell_s: float = 0.05
    """How long a speed lasts."""
    pause_probability: float = 0.0
    """How likely a pause begins in a spell."""
    pause_spells: int = 4
    """How many spells it lasts."""

    def __post_init__(self) -> None:
        if not self.speeds or min(self.speeds) <= 0:
            raise UsageError(f"workers with the speeds {list(self.speeds)}: each must be above 0")
        if self.groups and len(self.groups) != len(self.speeds):
            raise UsageError(f"{len(self.groups)} groups for {len(self.speeds)} workers")
        if self.spell_s <= 0 or not 0 <= self.pause_probability < 0.5 or self.noise < 0:
            raise UsageError(
                "noise must not be below 0, spell_s above 0, pause_probability from 0 to below 0.5"
            )

    @property
    def group_of(self) -> tuple[int, ...]:
        """The group of each worker."""
        return self.groups or (0,) * len(self.speeds)

    def paces(self, seed: int) -> list[Pace]:
        """How fast each of them is at every time, drawn with `seed`."""
        seeds = np.random.SeedSequence(seed).spawn(len(self.speeds))
        return [
            Pace(self, speed, np.random.default_rng(one))
            for speed, one in zip(self.speeds, seeds, strict=True)
        ]


class Pace:
    """What one worker can do by which time; drawn as far as it is asked for."""

    def __init__(self, crowd: Crowd, speed: float, rng: np.random.Generator) -> None:
        self._crowd = crowd
        self._speed = speed
        self._rng = rng
        self._is_steady = crowd.noise == 0 and crowd.pause_probability == 0
        self._done = [0.0]
        """How much is done at the end of each spell by who always works."""

    def finish(self, start_s: float, cost_s: float) -> float:
        """When work of `cost_s` that begins at `start_s` is done."""
        if self._is_steady:
            return start_s + cost_s / self._speed
        spell_s = self._crowd.spell_s
        goal = self._by(start_s) + cost_s
        while self._done[-1] < goal:
            self._draw()
        end = max(bisect_left(self._done, goal), 1)
        before, after = self._done[end - 1], self._done[end]
        return max((end - 1 + (goal - before) / (after - before)) * spell_s, start_s)

    def _by(self, at_s: float) -> float:
        place = at_s / self._crowd.spell_s
        spell = int(place)
        while len(self._done) < spell + 2:
            self._draw()
        low, high = self._done[spell], self._done[spell + 1]
        return low + (place - spell) * (high - low)

    def _draw(self) -> None:
        crowd, count = self._crowd, SPELLS_AT_ONCE
        speeds = self._speed * np.exp(crowd.noise * self._rng.standard_normal(count))
        begins = self._rng.random(count) < crowd.pause_probability
        paused = np.convolve(begins, np.ones(crowd.pause_spells))[:count] > 0
        speeds[paused] = 0.0
        speeds[-1] = self._speed  # a batch of spells does not end in a pause: work always ends
        done = self._done[-1] + np.cumsum(speeds) * crowd.spell_s
        self._done += done.tolist()
