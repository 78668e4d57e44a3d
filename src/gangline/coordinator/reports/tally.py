# SPDX-License-Identifier: Apache-2.0
"""Brings the workers' reports on a step together: the mind is asked once per step, not per worker."""

from __future__ import annotations

import math
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from gangline.control import StepMeasured

if TYPE_CHECKING:
    from gangline.planning.allocation.bounds import Floats
    from gangline.protocol.messages import Measured

MAX_OPEN_STEPS = 64
"""A step that so many later ones have overtaken is told with what there is."""
MAX_AHEAD = 1000
"""A report so many steps ahead of all others is not believed before another member says the same."""
DOUBTS_TOLD = 10
"""After so many such reports of one member, somebody is told."""


class Tally:
    """The reports on steps that are not complete yet."""

    def __init__(self, members: tuple[int, ...], *, reached: int = -1) -> None:
        self._members = members
        self._places = {worker: place for place, worker in enumerate(members)}
        self._open: dict[int, dict[int, Measured]] = {}
        self._arrived_s: dict[int, dict[int, float]] = {}
        self._last_told = -1
        self._reached = reached
        self._said: dict[int, int] = {}
        self._doubts: Counter[int] = Counter()

    def believes(self, worker: int, step: int) -> bool:
        """Whether a member may be at this step. Members exchange in every step, so none is far ahead.

        The others' reports may be lost, or a coordinator may be new: then a second one settles it.
        """
        reached = max(self._reached, self._last_told)
        others = max((at for other, at in self._said.items() if other != worker), default=-1)
        self._said[worker] = step
        is_alone = len(self._members) < 2 or worker not in self._places
        if is_alone or step <= max(reached, others) + MAX_AHEAD:
            return True
        self._doubts[worker] += 1
        return False

    def must_tell(self, worker: int) -> bool:
        """Whether it is time to say that a member is not believed."""
        return self._doubts[worker] == DOUBTS_TOLD

    def add(self, worker: int, report: Measured, now: float) -> list[StepMeasured]:
        """Takes one report, and returns the steps that are complete with it, in order."""
        if worker not in self._places or report.step <= self._last_told:
            return []
        self._open.setdefault(report.step, {})[worker] = report
        self._arrived_s.setdefault(report.step, {})[worker] = now
        complete = [step for step, known in self._open.items() if len(known) == len(self._members)]
        overdue = sorted(self._open)[:-MAX_OPEN_STEPS]
        last = max([*complete, *overdue], default=-1)
        return [self._tell(step) for step in sorted(self._open) if step <= last]

    def _tell(self, step: int) -> StepMeasured:
        known, arrived_s = self._open.pop(step), self._arrived_s.pop(step)
        first_s = min(arrived_s.values())
        self._last_told = step
        samples = np.zeros(len(self._members), dtype=np.int64)
        compute_s, delay_s = np.full((2, len(self._members)), math.nan)
        for worker, report in known.items():
            delay_s[self._places[worker]] = arrived_s[worker] - first_s
            samples[self._places[worker]] = report.samples
            compute_s[self._places[worker]] = report.compute_s
        view = max(report.view for report in known.values())
        return StepMeasured(
            step=step,
            view=view,
            workers=self._members,
            samples=samples,
            compute_s=compute_s,
            exchange_s=min(report.exchange_s for report in known.values()),
            step_s=median(one.compute_s + one.exchange_s + one.other_s for one in known.values()),
            delay_s=delay_s,
            hop_s=self._fastest_hops(known),
        )

    def _fastest_hops(self, known: dict[int, Measured]) -> Floats | None:
        """The fastest hop of each member, of those to it and from it; None where nobody says."""
        hop_s = np.full(len(self._members), math.nan)
        for worker, report in known.items():
            for peer, seconds in report.hops:
                if peer < len(hop_s):
                    for place in (self._places[worker], peer):
                        hop_s[place] = np.fmin(hop_s[place], seconds)
        return hop_s if np.isfinite(hop_s).any() else None
