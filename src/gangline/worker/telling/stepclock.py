# SPDX-License-Identifier: Apache-2.0
"""Where a step's time goes on this worker: data, computing, exchanging, updating.

The wall time of `backward()` is no measure of computing: it contains the exchange, which makes it
equal on all workers and hides the slow one. So computing ends when the last local gradient is ready.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(slots=True)
class StepTimes:
    """Seconds of one step."""

    data_s: float = 0.0
    compute_s: float = 0.0
    exchange_s: float = 0.0
    update_s: float = 0.0

    @property
    def total_s(self) -> float:
        """The whole step."""
        return self.data_s + self.compute_s + self.exchange_s + self.update_s


class StepClock:
    """A stopwatch with named laps."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._mark = now()
        self.times = StepTimes()

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = self._now()
        elapsed, self._mark = now - self._mark, now
        return elapsed

    def handed_out(self) -> None:
        self.times.data_s += self.lap()

    def computed(self) -> None:
        self.times.compute_s += self.lap()

    def exchanged(self) -> float:
        """Seconds of this exchange."""
        lap_s = self.lap()
        self.times.exchange_s += lap_s
        return lap_s

    def updated(self) -> None:
        self.times.update_s += self.lap()

    def take(self) -> StepTimes:
        """The times of the step that is over; the next one starts from nothing."""
        times, self.times = self.times, StepTimes()
        return times
