# SPDX-License-Identifier: Apache-2.0
"""What workers measured beside their steps: how busy they were, and what their scripts logged."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gangline.observe.page.cells import Cells
from gangline.observe.page.thinned import Thinned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.spec.event import Logged
    from gangline.spec.event import Utilisation as UtilisationEvent

METRICS = (
    *("cpu", "node_cpu", "memory_bytes", "node_memory", "threads"),
    *("sent_bytes", "received_bytes", "gpu", "gpu_memory_bytes"),
)
_RATES = ("sent_bytes", "received_bytes")
"""What was moved since the last word is shown per second."""
_MOST_BEHIND = 64
_MOST_NAMES = 32
_MOST_POINTS = 4096


class Utilisation:
    """How busy everybody was, over time."""

    def __init__(self) -> None:
        # A value and how often it was told, of each metric.
        self.cells = Cells(2 * len(METRICS), most_cells=1 << 16, most_bins=1024)
        self._last: dict[int, float] = {}

    def add(self, event: UtilisationEvent, at_s: float) -> None:
        """One worker's word."""
        told = [(place, self._value(event, name)) for place, name in enumerate(METRICS)]
        self._last[event.worker] = event.t
        known = [(place, value) for place, value in told if value is not None]
        channels = [channel for place, _ in known for channel in (2 * place, 2 * place + 1)]
        amounts = [amount for _, value in known for amount in (value, 1.0)]
        moments = np.full(len(channels), at_s)
        workers = np.full(len(channels), event.worker, dtype=np.int64)
        self.cells.add(
            workers, np.array(channels, dtype=np.int64), moments, moments, np.array(amounts)
        )

    def _value(self, event: UtilisationEvent, name: str) -> float | None:
        value = getattr(event, name)
        if name not in _RATES:
            return None if value is None else float(value)
        since_s = event.t - self._last.get(event.worker, event.t)
        return value / since_s if since_s > 0 else None

    def series(self) -> Iterator[tuple[str, np.ndarray]]:
        """Of each metric that anybody told: a row per worker; not a number where nothing is known."""
        sums = self.cells.sums
        for place, name in enumerate(METRICS):
            values, counts = sums[:, :, 2 * place], sums[:, :, 2 * place + 1]
            if counts.any():
                with np.errstate(invalid="ignore", divide="ignore"):
                    yield name, np.where(counts > 0, values / counts, np.nan)


class Curves:
    """The values that scripts logged: means over the workers of a step, weighted by their samples."""

    def __init__(self) -> None:
        self._pending: dict[int, dict[str, list[float]]] = {}
        self._views: dict[int, int] = {}
        self._newest = -1
        self.series: dict[str, Thinned] = {}
        """By name; a row has the step and the value."""

    def add(self, event: Logged, at_s: float) -> None:
        """What one worker logged in a step."""
        if event.view < self._views.get(event.step, event.view):
            return  # the step was done again since
        if event.view > self._views.get(event.step, event.view):
            self._pending.pop(event.step, None)
        self._views[event.step] = event.view
        sums = self._pending.setdefault(event.step, {})
        for name, value in event.values.items():
            if value is not None and math.isfinite(value):
                own = sums.setdefault(name, [at_s, 0.0, 0.0])
                weight = max(
                    event.samples, 1e-9
                )  # who logged without samples counts only if all did
                own[0], own[1], own[2] = at_s, own[1] + weight, own[2] + weight * value
        if event.step > self._newest:
            self._newest = event.step
            self._settle(self._newest - _MOST_BEHIND)

    def finish(self) -> None:
        """No more will come."""
        self._settle(self._newest)

    def _settle(self, last: int) -> None:
        for step in [one for one in self._pending if one <= last]:
            self._views.pop(step, None)
            for name, (at_s, weight, total) in self._pending.pop(step).items():
                if name in self.series or len(self.series) < _MOST_NAMES:
                    series = self.series.setdefault(name, Thinned(2, most=_MOST_POINTS))
                    series.add(at_s, [float(step), total / weight], weight=weight)
