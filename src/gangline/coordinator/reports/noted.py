# SPDX-License-Identifier: Apache-2.0
"""What the workers' scripts log, brought together: means over all samples of a step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

    from gangline.protocol.messages import Noted

MAX_STEPS = 16
"""Of so many of the newest steps the values are kept."""
MAX_NAMES = 256
"""More names than this are not kept: workers may send anything."""


class _Sums:
    """One value over the newest steps of a team."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[int, tuple[int, float]]] = {}
        self._views: dict[int, int] = {}

    def add(self, worker: int, noted: Noted, value: float) -> None:
        """A worker's mean over its samples of a step; of a step done again, the last time counts."""
        step = noted.step
        if noted.view < self._views.get(step, -1):
            return
        if noted.view > self._views.get(step, -1):
            self._steps.pop(step, None)
        self._views[step] = noted.view
        self._steps.setdefault(step, {})[worker] = noted.samples, value
        while len(self._steps) > MAX_STEPS:
            oldest = min(self._steps)
            del self._steps[oldest], self._views[oldest]

    def newest(self) -> tuple[int, int, float]:
        """Step, samples and mean of the newest step that as many samples speak for as for any."""
        counts = {step: sum(n for n, _ in own.values()) for step, own in self._steps.items()}
        most = max(counts.values())
        step = max(one for one, count in counts.items() if count == most)
        own = self._steps[step].values()
        return step, most, sum(n * value for n, value in own) / most


class NotedValues:
    """The newest of every value, over all teams."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, str], _Sums] = {}

    def note(self, team: int, worker: int, noted: Noted, *, teams: Container[int]) -> None:
        """A worker says what its script has logged; `teams` are all that there are now."""
        for name, value in noted.values.items():
            key = (team, name)
            if key not in self._sums:
                self._keep(teams)
                if len(self._sums) >= MAX_NAMES:
                    continue
                self._sums[key] = _Sums()
            self._sums[key].add(worker, noted, value)

    def _keep(self, teams: Container[int]) -> None:
        """What teams that are no more have said is no part of a mean."""
        self._sums = {key: sums for key, sums in self._sums.items() if key[0] in teams}

    def newest(self, teams: Container[int]) -> dict[str, float | None]:
        """By name: the mean over the samples of the newest step; None where it is not finite."""
        self._keep(teams)
        parts: dict[str, list[tuple[int, float]]] = {}
        for (_, name), sums in self._sums.items():
            _, samples, mean = sums.newest()
            parts.setdefault(name, []).append((samples, mean))
        return {name: _mean(own) for name, own in sorted(parts.items())}


def _mean(parts: list[tuple[int, float]]) -> float | None:
    mean = sum(n * value for n, value in parts) / sum(n for n, _ in parts)
    return mean if math.isfinite(mean) else None
