# SPDX-License-Identifier: Apache-2.0
"""Which steps the page shows in full: the first, those around what happened, and a sample.

The sample is one step in a hundred; where that would be too much, one in two hundred, and so on.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gangline.observe.timeline import Step
    from gangline.spec.event import UnitsExchanged

FIRST_STEPS = 100
AROUND_STEPS = 25
"""So many steps before, and as many after, whatever happened."""
SAMPLE_EVERY = 100
_MOST_RECORDS = 120_000
"""Of each of the three reasons, over all workers."""
_MOST_UNITS = 200_000

FIELDS = ("worker", "step", "end", "data", "compute", "wait", "exchange", "update", "samples")
"""The columns of a record; times in seconds, `end` since the run began."""

_Record = tuple[float, ...]


class Detail:
    """Keeps the records of some steps, and the units that were exchanged in them."""

    def __init__(self) -> None:
        self._first: list[_Record] = []
        self._around: list[_Record] = []
        self._sample: list[_Record] = []
        self._every = SAMPLE_EVERY
        self._recent: dict[int, deque[Step]] = {}
        self._left: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self._units: list[tuple[float, ...]] = []
        self.is_cut = False
        """Whether more happened than could be shown in full."""

    def add(self, step: Step, origin: float, *, is_chosen: bool = False) -> None:
        """A step that is done; one that its workers chose to write in full is kept."""
        team = step.team
        self._seen[team] = self._seen.get(team, 0) + 1
        if self._seen[team] <= FIRST_STEPS and len(self._first) < _MOST_RECORDS:
            self._first += _records(step, origin)
        elif is_chosen or self._left.get(team, 0) > 0:
            self._left[team] = max(0, self._left.get(team, 0) - 1)
            self._keep_around(step, origin)
        elif step.number % self._every == 0:
            self._sample += _records(step, origin)
            self._thin_sample()
        else:
            recent = self._recent.setdefault(team, deque(maxlen=AROUND_STEPS))
            recent.append(step)

    def happened(self, origin: float) -> None:
        """Something was decided, or went wrong: what is around it is kept."""
        for team in self._seen:
            for step in self._recent.pop(team, ()):
                self._keep_around(step, origin)
            self._left[team] = AROUND_STEPS

    def add_units(self, event: UnitsExchanged) -> None:
        """The units of a step, which is shown in full if it is kept."""
        if len(self._units) < _MOST_UNITS:
            for unit, ready_s, begin_s, end_s in event.units:
                self._units.append((event.worker, event.step, unit, ready_s, begin_s, end_s))

    def records(self) -> NDArray[np.float64]:
        """All records, by worker and time: one row for each of FIELDS."""
        kept = np.array([*self._first, *self._around, *self._sample], dtype=np.float64)
        kept = kept.reshape(-1, len(FIELDS))
        kept = np.unique(kept, axis=0)  # a step may be kept for two reasons
        return kept[np.lexsort((kept[:, 2], kept[:, 0]))].T

    def units(self) -> NDArray[np.float64]:
        """Worker, step, unit, ready, begin and end, each as one row."""
        return np.array(sorted(self._units), dtype=np.float64).reshape(-1, 6).T

    def _keep_around(self, step: Step, origin: float) -> None:
        if len(self._around) < _MOST_RECORDS:
            self._around += _records(step, origin)
        else:
            self.is_cut = True

    def _thin_sample(self) -> None:
        if len(self._sample) > _MOST_RECORDS:
            self._every *= 2
            self._sample = [one for one in self._sample if one[1] % self._every == 0]


def _records(step: Step, origin: float) -> list[_Record]:
    exchange_s = step.exchange_s
    return [
        (
            worker,
            step.number,
            record.t - origin,
            record.data_s,
            record.compute_s,
            record.exchange_s - exchange_s,
            exchange_s,
            record.update_s,
            record.samples,
        )
        for worker, record in step.records.items()
    ]
