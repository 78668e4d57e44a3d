# SPDX-License-Identifier: Apache-2.0
"""SARSA: learns from loop to loop which choice is good in which state.

    Q(s, a) ← Q(s, a) + α·(r + γ·Q(s′, a′) − Q(s, a))

A state says whether workers were uneven, and whether overheads were large. The reward is the shortest
time per item so far over that of this loop: 1 is the best. With probability ε a choice is drawn, else
the one with the largest Q is taken; ε and α become smaller with every loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.scheduling.choice import Choice
    from gangline.scheduling.measures import LoopReport

GAMMA = 0.5
"""What comes after a loop matters less: loops hardly depend on each other."""
FIRST_ALPHA, FIRST_EPSILON = 0.85, 0.9
DECAY, LEAST = 0.9, 0.1
HOPED = 2.0
"""What an untried choice is taken to be worth: with γ = ½ no choice is worth more."""


class _State(NamedTuple):
    is_uneven: bool
    is_costly: bool

    @classmethod
    def of(cls, report: LoopReport) -> _State:
        return cls(report.imbalance > 0.05, report.overhead_share > 0.05)


class Sarsa:
    """One learner, which draws with its own generator."""

    def __init__(self, *, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._values: dict[tuple[_State, str], float] = {}
        self._alpha, self._epsilon = FIRST_ALPHA, FIRST_EPSILON
        self._shortest_s: float | None = None
        self._last: tuple[_State, str] | None = None
        self._reward: float | None = None

    def pick(self, choices: Sequence[Choice], report: LoopReport) -> tuple[Choice, str]:
        """The choice for the next loop, after one that went like `report`."""
        state = _State.of(report)
        is_drawn = float(self._rng.random()) < self._epsilon
        values = [self._values.get((state, str(choice)), HOPED) for choice in choices]
        place = int(self._rng.integers(len(choices))) if is_drawn else int(np.argmax(values))
        self._learn((state, str(choices[place])), values[place])
        self._alpha = max(LEAST, self._alpha * DECAY)
        self._epsilon = max(LEAST, self._epsilon * DECAY)
        why = (
            f"drawn, ε = {self._epsilon:.2f}" if is_drawn else f"the largest Q, {values[place]:.3f}"
        )
        return choices[place], why

    def reward(self, report: LoopReport) -> None:
        """The loop is over."""
        took_s = report.time_per_item_s
        if took_s <= 0:
            return
        self._shortest_s = min(took_s, self._shortest_s or took_s)
        self._reward = self._shortest_s / took_s

    def _learn(self, after: tuple[_State, str], value_after: float) -> None:
        if self._last is not None and self._reward is not None:
            value = self._values.get(self._last, HOPED)
            target = self._reward + GAMMA * value_after
            self._values[self._last] = value + self._alpha * (target - value)
        self._last = after
