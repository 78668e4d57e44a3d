# SPDX-License-Identifier: Apache-2.0
"""What each worker's time was spent on, over the whole run, and how well the steady steps went."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from gangline.observe.costs import fit_cost, optimum_s
from gangline.observe.timeline import MAX_WARM_UP_STEPS
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangline.observe.costs import WorkerCost
    from gangline.observe.page.cells import Floats, Ints
    from gangline.observe.page.stepping import Stretch

SPENT = ("compute", "data", "exchange", "wait", "update", "other")
"""What a worker's time in a step is spent on."""
_MOST_TIMES = 64
_MOST_SIZES = 64
"""Computing times that are kept of each share, and shares of each worker, to tell its cost from."""
_MOST_WORKERS = 1 << 22
_MOST_LEARNT = 1000
_LEARN_EVERY = 16
"""After so many steps, costs are learnt from every so many-th only."""
_MOST_EARLY = 8 * MAX_WARM_UP_STEPS


class Pace(NamedTuple):
    """How fast the steady steps were; None where there are none."""

    num_steps: int
    throughput: float | None
    """Samples per second; of teams at the same time, the one that trained longest says how long."""
    step_s: float | None
    efficiency: float | None
    """The compute-only optimum over the measured time."""


_Sums: TypeAlias = dict[tuple[int, frozenset[int], int], list[float]]
"""Steps, samples and seconds: by team, members and the samples of a step."""


class Totals:
    """Sums over all steps; the steady ones are those after the warm-up to which all have reported."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.spent = np.zeros((0, len(SPENT)))
        """By worker, seconds of each of SPENT."""
        self.worker_steps = np.zeros(0)
        self.worker_samples = np.zeros(0)
        self.caused_s = np.zeros(0)
        """By worker, how long all others together waited for it."""
        self.last_steps = np.zeros(0)
        """By worker, in how many steps it was ready last."""
        self._compute: dict[int, dict[int, list[float]]] = {}
        self._early: list[Stretch] = []
        self._num_steady = 0
        self._paces: tuple[_Sums, _Sums] = ({}, {})
        """Of steps that lack somebody's report, and of those that all have reported."""
        self._numbers: dict[int, list[int]] = {}
        """By team, the numbers of its first and its last step."""

    def add_times(self, workers: Ints, spent: Floats, steps: Floats, samples: Floats) -> None:
        """The times of many records; `spent` has a row for each, in the order of SPENT."""
        self._make_room(int(workers.max()))
        np.add.at(self.spent, workers, spent)
        np.add.at(self.worker_steps, workers, steps)
        np.add.at(self.worker_samples, workers, samples)

    def blame(self, worker: int, wait_s: float, count: int) -> None:
        """Others waited for this worker."""
        self._make_room(worker)
        self.caused_s[worker] += wait_s
        self.last_steps[worker] += count

    def add_stretch(self, stretch: Stretch) -> None:
        """A step, or some, for how fast the job went and what computing costs."""
        self.num_steps += stretch.num_steps
        if len(self._early) < _MOST_EARLY:
            self._early.append(stretch)
        else:
            self._add_steady(stretch)

    def finish(self, *, num_teams: int) -> None:
        """All steps are known now, and so is how many of them are the warm-up."""
        num_warm_up = min(MAX_WARM_UP_STEPS * max(1, num_teams), self.num_steps // 4)
        for stretch in self._early:
            if num_warm_up > 0 and stretch.num_steps == 1:  # what is summed up is long past it
                num_warm_up -= 1
            else:
                self._add_steady(stretch)
        self._early = []

    def costs(self) -> dict[int, WorkerCost]:
        """What a sample costs each worker, as its steady steps show it."""
        fitted = {
            worker: fit_cost([(size, time) for size, times in own.items() for time in times])
            for worker, own in sorted(self._compute.items())
        }
        return {worker: cost for worker, cost in fitted.items() if cost is not None}

    def pace(self, costs: Mapping[int, WorkerCost]) -> Pace:
        """How fast the steady steps were, and how near to the best that could be."""
        count, samples, took_s, best_s = 0.0, 0.0, 0.0, 0.0
        by_team: dict[int, float] = {}
        sums = self._paces[True] or self._paces[False]
        for (team, workers, size), (steps, all_samples, all_s) in sums.items():
            known = [costs[worker] for worker in workers if worker in costs]
            count, samples, took_s = count + steps, samples + all_samples, took_s + all_s
            best_s += steps * optimum_s(known, size) if known else 0.0
            by_team[team] = by_team.get(team, 0.0) + all_s
        lasted_s = self._lasted_s(by_team)
        return Pace(
            num_steps=int(count),
            throughput=samples / lasted_s if lasted_s > 0 else None,
            step_s=took_s / count if count else None,
            efficiency=best_s / took_s if took_s > 0 and costs else None,
        )

    def _lasted_s(self, by_team: Mapping[int, float]) -> float:
        """How long all steps took: teams train at the same time where their steps' numbers overlap."""
        total_s = longest_s = 0.0
        last = -1
        for team in sorted(by_team, key=lambda one: self._numbers[one]):
            if self._numbers[team][0] > last:
                total_s, longest_s = total_s + longest_s, 0.0
            longest_s = max(longest_s, by_team[team])
            last = max(last, self._numbers[team][1])
        return total_s + longest_s

    def _add_steady(self, stretch: Stretch) -> None:
        step, count, took_s, samples, is_complete = stretch
        key = (step.team, frozenset(step.records), samples // count)
        sums = self._paces[is_complete].setdefault(key, [0.0, 0.0, 0.0])
        for place, value in enumerate((count, samples, took_s)):
            sums[place] += value
        numbers = self._numbers.setdefault(step.team, [step.number, step.number])
        numbers[0] = min(numbers[0], step.number)
        numbers[1] = max(numbers[1], step.number + count - 1)
        self._num_steady += 1
        if self._num_steady > _MOST_LEARNT and self._num_steady % _LEARN_EVERY:
            return
        for worker, record in step.records.items():
            times = self._compute.setdefault(worker, {})
            share = record.samples // count
            if share in times or len(times) < _MOST_SIZES:
                kept = times.setdefault(share, [])
                kept.append(record.compute_s / count)
                if len(kept) > 2 * _MOST_TIMES:
                    del kept[::2]  # every second one: early and late ones stay in

    def _make_room(self, worker: int) -> None:
        if worker >= _MOST_WORKERS:
            raise UsageError(
                f"a log of this run speaks of worker {worker}, and no run has as many as "
                f"{_MOST_WORKERS}: the log is damaged, or none of gangline's"
            )
        missing = worker + 1 - len(self.caused_s)
        if missing > 0:
            more = max(missing, len(self.caused_s))
            self.spent = np.concatenate([self.spent, np.zeros((more, len(SPENT)))])
            for name in ("worker_steps", "worker_samples", "caused_s", "last_steps"):
                setattr(self, name, np.concatenate([getattr(self, name), np.zeros(more)]))
