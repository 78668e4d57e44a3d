# SPDX-License-Identifier: Apache-2.0
"""What rounds in the background take from the steps beside them.

A round costs more than the time that this process spends on it: its bytes go through the network card
that the team's gradients go through, its threads use the cores that compute, and when one member waits
all do. All of that is seen in the steps: those beside a round are longer than those without one.
"""

from __future__ import annotations

from collections import deque
from statistics import median

_REMEMBERED = 31
_MIN_CALM = 5
"""So many steps without a round must be known before others are compared with them."""


class Burden:
    """By how much longer the steps beside the present round were than calm ones."""

    def __init__(self) -> None:
        self._calm: deque[float] = deque(maxlen=_REMEMBERED)
        self._steps: list[float] = []

    def add(self, step_s: float, *, is_calm: bool) -> None:
        """A step was made, without a round or beside one."""
        if is_calm:
            self._calm.append(step_s)
        else:
            self._steps.append(step_s)

    def begin(self) -> None:
        """Another round begins."""
        self._steps = []

    @property
    def seconds(self) -> float:
        """What the present round has taken from the steps so far; 0 where that is not known."""
        if len(self._calm) < _MIN_CALM:
            return 0.0
        usual_s = median(self._calm)
        return max(0.0, sum(step_s - usual_s for step_s in self._steps))
