# SPDX-License-Identifier: Apache-2.0
"""Brings the workers' reports on a step together: the mind is asked once per step, not per worker."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gangline.control import StepMeasured

if TYPE_CHECKING:
    from gangline.runtime.messages import Measured

MAX_OPEN_STEPS = 64
"""A step that so many later ones have overtaken is told with what there is."""


class Tally:
    """The reports on steps that are not complete yet."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self._members = members
        self._places = {worker: place for place, worker in enumerate(members)}
        self._open: dict[int, dict[int, Measured]] = {}
        self._last_told = -1

    def add(self, worker: int, report: Measured) -> list[StepMeasured]:
        """Takes one report, and returns the steps that are complete with it, in order."""
        if worker not in self._places or report.step <= self._last_told:
            return []
        self._open.setdefault(report.step, {})[worker] = report
        complete = [step for step, known in self._open.items() if len(known) == len(self._members)]
        overdue = sorted(self._open)[:-MAX_OPEN_STEPS]
        last = max([*complete, *overdue], default=-1)
        return [self._tell(step) for step in sorted(self._open) if step <= last]

    def _tell(self, step: int) -> StepMeasured:
        known = self._open.pop(step)
        self._last_told = step
        samples = np.zeros(len(self._members), dtype=np.int64)
        compute_s = np.full(len(self._members), math.nan)
        for worker, report in known.items():
            samples[self._places[worker]] = report.samples
            compute_s[self._places[worker]] = report.compute_s
        view = max(report.view for report in known.values())
        return StepMeasured(
            step=step, view=view, workers=self._members, samples=samples, compute_s=compute_s
        )
