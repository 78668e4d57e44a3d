# SPDX-License-Identifier: Apache-2.0
"""Steps of which one line speaks for all workers: the fastest, a middle one, and the slowest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gangline.observe.page.fold import Fold
    from gangline.spec.event import StepSummary

MIDDLE = 1
NAMES = ("the fastest", "in the middle", "the slowest")


class Lanes:
    """Three rows that stand for all workers."""

    def __init__(self) -> None:
        self.num_workers = 0
        """The most that took part in a step; 0: every worker reports for itself."""
        self.slowest: dict[int, tuple[int, float]] = {}
        """By worker: in how many steps it was the slowest, and what the others waited then."""
        self.node_s = 0.0
        """The time of all workers together, in steps."""
        self._last_s: float | None = None

    def add(self, event: StepSummary, at_s: float, fold: Fold) -> None:
        """One step of all workers."""
        self.num_workers = max(self.num_workers, event.workers)
        compute = np.array(
            [event.least_compute_s, event.median_compute_s, event.greatest_compute_s]
        )
        wait = event.greatest_compute_s - compute
        step_s = event.greatest_compute_s + event.exchange_s + event.update_s
        took_s = max(step_s, at_s - self._last_s) if self._last_s is not None else step_s
        self._last_s = at_s
        fold.first_step_s.setdefault(MIDDLE, at_s - took_s)
        same = np.ones(3)
        fold.add_records(
            np.stack(
                [
                    *(np.arange(3.0), at_s * same, 0 * same, compute, wait),
                    *(event.exchange_s * same, event.update_s * same, took_s * same),
                    *(same * event.samples / event.workers, same),
                ]
            )
        )
        fold.totals.num_steps += 1
        fold.used.compute(event.epoch, event.samples)
        fold.note_step(0, at_s, took_s, float(event.samples), 1)
        waited_s = (event.greatest_compute_s - event.median_compute_s) * event.workers
        count, before_s = self.slowest.get(event.slowest, (0, 0.0))
        self.slowest[event.slowest] = (count + 1, before_s + waited_s)
        self.node_s += took_s * event.workers
