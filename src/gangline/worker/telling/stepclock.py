# SPDX-License-Identifier: Apache-2.0
"""Where a step's time goes on this worker: data, computing, exchanging, updating, being served.

The wall time of `backward()` is no measure of computing: it contains the exchange, which makes it
equal on all workers and hides the slow one. So computing ends when the last local gradient is ready.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.worker.telling.deviceclock import DeviceClock


@dataclass(slots=True)
class StepTimes:
    """Seconds of one step."""

    data_s: float = 0.0
    compute_s: float = 0.0
    exchange_s: float = 0.0
    update_s: float = 0.0
    served_s: float = 0.0
    """Pushing to parameter servers, waiting for a turn, and pulling from them."""
    turn_s: float = 0.0
    """Of that, waiting for a turn."""
    waited_s: float | None = None
    """Of computing, waiting for a device to do what this thread has queued; None: it did not."""

    @property
    def total_s(self) -> float:
        """The whole step."""
        return self.data_s + self.compute_s + self.exchange_s + self.update_s + self.served_s

    def on_device(self, compute_s: float) -> StepTimes:
        """The same step, in which a device has computed for so long, beside this thread.

        What is left of the step is loading, exchanging and being served, as long as they took, and
        the update.
        """
        left_s = max(0.0, self.total_s - compute_s)
        data_s = min(self.data_s, left_s)
        exchange_s = min(self.exchange_s, left_s - data_s)
        served_s = min(self.served_s, left_s - data_s - exchange_s)
        update_s = left_s - data_s - exchange_s - served_s
        turn_s = min(self.turn_s, served_s)
        return StepTimes(data_s, compute_s, exchange_s, update_s, served_s, turn_s)


class StepClock:
    """A stopwatch with named laps."""

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, device: DeviceClock | None = None
    ) -> None:
        self._now = now
        self._device = device
        self._mark = now()
        self.times = StepTimes()

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = self._now()
        elapsed, self._mark = now - self._mark, now
        return elapsed

    def handed_out(self) -> None:
        self.times.data_s += self.lap()
        self._begin()

    def computed(self) -> None:
        self.times.compute_s += self.lap()
        if self._device is not None:
            self._device.end()

    def exchanged(self) -> float:
        """Seconds of this exchange."""
        lap_s = self.lap()
        self.times.exchange_s += lap_s
        self._begin()
        return lap_s

    def updated(self) -> None:
        self.times.update_s += self.lap()
        self._begin()

    def served(self, turn_s: float) -> None:
        """Parameter servers have made the update; so long a turn was waited for."""
        self.times.served_s += self.lap()
        self.times.turn_s += turn_s
        self._begin()

    def waited(self, served_s: float, turn_s: float) -> None:
        """Since the last call servers were waited for so long, of it for a turn; not in other laps."""
        in_lap_s = min(served_s, self._now() - self._mark)
        self._mark += in_lap_s
        self.times.served_s += in_lap_s
        self.times.turn_s += min(turn_s, in_lap_s)

    def awaited(self, seconds: float | None) -> None:
        """A device was waited for so long at the end of a pass; None: there is none to wait for."""
        if seconds is not None:
            self.times.waited_s = (self.times.waited_s or 0.0) + seconds

    def take(self, samples: int = 0, *, is_drawn: bool = False) -> StepTimes:
        """The times of the step that is over, of so many samples; the next one starts from nothing."""
        times, self.times = self.times, StepTimes()
        device = self._device
        device_s = None if device is None else device.take(samples, is_drawn=is_drawn)
        return times if device_s is None else times.on_device(device_s)

    def _begin(self) -> None:
        if self._device is not None:
            self._device.begin()
