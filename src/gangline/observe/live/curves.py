# SPDX-License-Identifier: Apache-2.0
"""What scripts log, step by step: means over all workers, weighted by samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gangline.spec.event import Logged

SETTLED_S = 3.0
"""So long after a step no worker's log is expected to say more of it: they are written every half
second, and sent from other machines every second."""
MAX_OPEN = 4096


class StepValues(msgspec.Struct, frozen=True, kw_only=True):
    """The values of one step, over all workers that logged them."""

    t: float
    step: int
    epoch: int
    values: dict[str, float]
    """Those that are finite."""


class _Open:
    """One step, as far as it is known."""

    def __init__(self, view: int) -> None:
        self.view = view
        self.t = 0.0
        self.epoch = 0
        self.by_worker: dict[int, dict[str, tuple[int, float | None]]] = {}

    def add(self, event: Logged) -> None:
        self.t, self.epoch = max(self.t, event.t), event.epoch
        own = self.by_worker.setdefault(event.worker, {})
        own.update({name: (event.samples, value) for name, value in event.values.items()})

    def means(self) -> dict[str, tuple[int, float | None]]:
        """By name: how many samples speak for it, and the mean; None where one part is not finite."""
        parts: dict[str, list[tuple[int, float | None]]] = {}
        for own in self.by_worker.values():
            for name, part in own.items():
                parts.setdefault(name, []).append(part)
        return {name: _mean(own) for name, own in parts.items()}


class Curves:
    """Takes what workers logged in any order; gives steps in theirs, when they are complete.

    Where a step was done again, only what was logged in the newest view counts.
    """

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._latest_t = float("-inf")
        self._taken = -1
        self._newest: dict[str, tuple[int, int, float | None]] = {}

    def note(self, event: Logged) -> None:
        """A worker logged something. What comes too late, after its step was given, is left out."""
        self._latest_t = max(self._latest_t, event.t)
        if event.step <= self._taken and event.view >= 0:
            return
        known = self._open.get(event.step)
        if known is None or event.view > known.view >= 0:
            known = self._open[event.step] = _Open(event.view)
        if event.view in (known.view, -1) or known.view == -1:
            known.view = max(known.view, event.view)
            known.add(event)
        if len(self._open) > MAX_OPEN:
            del self._open[min(self._open)]

    def take(self, *, is_final: bool = False) -> list[StepValues]:
        """The steps that are complete since the last time; with `is_final`, all that there are."""
        is_due = [
            step
            for step, known in sorted(self._open.items())
            if is_final or known.t <= self._latest_t - SETTLED_S
        ]
        found = []
        for step in is_due:
            known = self._open.pop(step)
            self._taken = max(self._taken, step)
            means = known.means()
            self._remember(step, means)
            values = {name: mean for name, (_, mean) in means.items() if mean is not None}
            if values:
                found.append(StepValues(t=known.t, step=step, epoch=known.epoch, values=values))
        return found

    def newest(self) -> dict[str, float | None]:
        """Of every value, the newest step that as many samples speak for as for any."""
        best = dict(self._newest)
        for step, known in sorted(self._open.items()):
            for name, (samples, mean) in known.means().items():
                if name not in best or samples >= best[name][1]:
                    best[name] = (step, samples, mean)
        return {name: mean for name, (_, _, mean) in best.items()}

    def _remember(self, step: int, means: dict[str, tuple[int, float | None]]) -> None:
        for name, (samples, mean) in means.items():
            self._newest[name] = (step, samples, mean)


def _mean(parts: list[tuple[int, float | None]]) -> tuple[int, float | None]:
    samples = sum(count for count, _ in parts)
    numbers = [(count, value) for count, value in parts if value is not None]
    if len(numbers) < len(parts) or samples == 0:
        return samples, None
    return samples, sum(count * value for count, value in numbers) / samples
