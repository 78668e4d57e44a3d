# SPDX-License-Identifier: Apache-2.0
"""Folds the events of a run, in one pass and bounded room, into what its page shows."""

from __future__ import annotations

import time
from array import array
from typing import TYPE_CHECKING

import numpy as np

from gangline.observe.page.cells import Cells
from gangline.observe.page.detail import Detail
from gangline.observe.page.happenings import Happenings
from gangline.observe.page.leased import Used
from gangline.observe.page.links import Links
from gangline.observe.page.presence import Presence
from gangline.observe.page.readings import Curves, Utilisation
from gangline.observe.page.stepping import Stepper, Stretch
from gangline.observe.page.summed import Lanes
from gangline.observe.page.thinned import Thinned
from gangline.observe.page.totals import SPENT, Pace, Totals
from gangline.observe.served import ServedTally
from gangline.observe.timeline import Timeline, accounted_s, extend, place
from gangline.spec.errors import LogError
from gangline.spec.event import (
    LinkMeasured,
    Logged,
    Regrouped,
    StepDone,
    StepsDone,
    StepSummary,
    UnitsExchanged,
    ViewAdopted,
    WorkerReady,
)
from gangline.spec.event import (
    Utilisation as UtilisationEvent,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangline.observe.page.cells import Floats
    from gangline.spec.event import AnyEvent

_BATCH = 4096
"""So many records are summed at once."""
_FIELDS = 10
_EVENTS_PER_LOOK = 2048
_MOST_CELLS = 1 << 20
_MOST_STEPS = 4096
_MOST_FULL_TEAMS = 8
_FEWER_STEPS = 256
"""Points of the lines over steps: of the first teams, and of each that is beyond them."""


class ReportTimeoutError(LogError):
    """A run takes longer to read than there is time for."""


class Fold:
    """What is known of a run after its events so far."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        """Everything but the steps."""
        self.origin: float | None = None
        """When the run began; all times of the page are since then."""
        self.stepper = Stepper(self.timeline.pauses)
        self.totals = Totals()
        self.used = Used()
        self.served = ServedTally()
        self.spans = Cells(len(SPENT), most_cells=_MOST_CELLS, most_bins=1 << 14)
        """Seconds of each of SPENT, for the Gantt chart."""
        self.work = Cells(2, most_cells=1 << 17, most_bins=1 << 10)
        """Samples, and seconds of computing, for what comes of it."""
        self.steps: dict[int, Thinned] = {}
        """Of each team: how long a step took, and its samples."""
        self.detail = Detail()
        self.presence = Presence()
        self.happenings = Happenings()
        self.links = Links()
        self.utilisation = Utilisation()
        self.curves = Curves()
        self.lanes = Lanes()
        """Where one line speaks for all workers of a step."""
        self.first_seen_s: dict[int, float] = {}
        self.first_step_s: dict[int, float] = {}
        """When each worker was seen first, and when it began its first step."""
        self._records = array("d")

    @property
    def length_s(self) -> float:
        """From the first event to the last."""
        return max(0.0, (self.timeline.last_t or 0.0) - (self.origin or 0.0))

    def add(self, event: AnyEvent) -> None:
        """The next event, in the order of time."""
        if self.origin is None:
            self.origin = event.t
        extend(self.timeline, event.t)
        if isinstance(event, StepDone | StepsDone):
            for stretch in self.stepper.add(event):
                self._add_stretch(stretch)
            self.presence.add_step(event)
            if event.worker not in self.first_step_s:
                self.first_step_s[event.worker] = event.t - accounted_s(event) - self.origin
                self.first_seen_s.setdefault(event.worker, self.first_step_s[event.worker])
        else:
            self._add_other(event, self.origin)

    def finish(self) -> None:
        """There are no more events."""
        for stretch in self.stepper.finish():
            self._add_stretch(stretch)
        self._flush()
        self.curves.finish()
        self.presence.finish(self.timeline.last_t or 0.0)
        teams = {team for team, _ in self.timeline.views}
        self.totals.finish(num_teams=len(teams))

    def _add_other(self, event: AnyEvent, origin: float) -> None:
        match event:
            case UtilisationEvent():
                self.utilisation.add(event, event.t - origin)
            case Logged():
                self.curves.add(event, event.t - origin)
            case UnitsExchanged():
                self.detail.add_units(event)
            case LinkMeasured():
                self.links.add(event)
            case StepSummary():
                self.lanes.add(event, event.t - origin, self)
            case _:
                self.presence.add(event)
                self.used.add(event)
                self.served.add(event)
                if isinstance(event, ViewAdopted):
                    self.stepper.adopt(event)
                    self.links.adopt(event)
                elif isinstance(event, Regrouped):
                    self.links.regroup(event.worker)
                elif isinstance(event, WorkerReady):
                    self.first_seen_s.setdefault(event.worker, event.t - origin)
                place(self.timeline, event)
                if self.happenings.add(event, origin):
                    self.detail.happened(origin)

    def _add_stretch(self, stretch: Stretch) -> None:
        step, count, took_s, samples, _ = stretch
        assert self.origin is not None
        origin, exchange_s = self.origin, step.exchange_s
        add = self._records.extend
        told_s = latest = 0.0
        for worker, one in step.records.items():
            told_s += one.exchange_s
            latest = max(latest, one.t)
            wait_s = one.exchange_s - exchange_s
            elapsed_s = step.elapsed_s[worker]
            times = (one.data_s, one.compute_s, wait_s, exchange_s, one.update_s, elapsed_s)
            add((worker, one.t - origin, *times, one.samples, count))
        if step.turn_s:
            self.served.wait(step.records, step.turn_s)
        self.totals.add_stretch(stretch)
        self.used.compute(step.epoch, samples)
        if len(step.records) > 1:
            waited_s = told_s - (exchange_s + step.turn_s) * len(step.records)
            self.totals.blame(step.last_worker, waited_s, count)
        self.note_step(step.team, latest - origin, took_s / count, samples / count, count)
        if count == 1:
            self.detail.add(step, origin, is_chosen=self.stepper.is_summed)
        if len(self._records) >= _BATCH * _FIELDS:
            self._flush()

    def note_step(self, team: int, at_s: float, took_s: float, samples: float, count: int) -> None:
        """How long a step took, or each of some."""
        if team not in self.steps:
            most = _MOST_STEPS if len(self.steps) < _MOST_FULL_TEAMS else _FEWER_STEPS
            self.steps[team] = Thinned(2, most=most)
        self.steps[team].add(at_s, [took_s, samples], weight=count)

    def all_steps(self) -> Floats:
        """The steps of all teams by time: moment, how many, seconds of one, its samples, and team."""
        parts = [
            np.vstack([series.columns(), np.full(series.columns().shape[1], float(team))])
            for team, series in sorted(self.steps.items())
        ]
        if not parts:
            return np.zeros((5, 0))
        steps = np.concatenate(parts, axis=1)
        return steps[:, np.argsort(steps[0], kind="stable")]

    def pace(self) -> Pace:
        """How fast the steady steps were."""
        if not self.lanes.num_workers:
            return self.totals.pace(self.totals.costs())
        _, counts, took_s, samples, _ = self.all_steps()
        time_s = float(counts @ took_s)
        return Pace(
            num_steps=int(counts.sum()),
            throughput=float(counts @ samples) / time_s if time_s > 0 else None,
            step_s=time_s / counts.sum() if time_s > 0 else None,
            efficiency=None,  # what a sample costs each worker is not in the log
        )

    def _flush(self) -> None:
        if not self._records:
            return
        table = np.frombuffer(self._records, dtype=np.float64).reshape(-1, _FIELDS).T.copy()
        self._records = array("d")
        self.add_records(table)

    def add_records(self, table: np.ndarray) -> None:
        """A column for each record: its worker, its end, and what its time was spent on."""
        ends, data, compute, wait, exchange, update, elapsed, samples, count = table[1:]
        workers = table[0].astype(np.int64)
        other = np.maximum(0.0, elapsed - data - compute - wait - exchange - update)
        spent = np.stack([compute, data, exchange, wait, update, other], axis=1)
        self.totals.add_times(workers, spent, count, samples)
        begins = ends - elapsed + other
        for channel, parts in (
            (5, other),
            (1, data),
            (0, compute),
            (3, wait),
            (2, exchange),
            (4, update),
        ):
            start = begins - other if channel == 5 else begins
            stop = begins if channel == 5 else begins + parts
            self.spans.add(workers, np.full(len(workers), channel), start, stop, parts)
            begins = stop
        for channel, amount in enumerate((samples, compute)):
            self.work.add(workers, np.full(len(workers), channel), ends - elapsed, ends, amount)


def fold_events(events: Iterable[AnyEvent], *, deadline: float | None = None) -> Fold:
    """Reads all events; raises ReportTimeoutError when time.monotonic() is past the deadline."""
    fold = Fold()
    for number, event in enumerate(events):
        if deadline is not None and number % _EVENTS_PER_LOOK == 0 and time.monotonic() > deadline:
            raise ReportTimeoutError(
                "the logs are too long to be read in the time that there is; make the page later by "
                "`gangline report RUN -o report.html`"
            )
        fold.add(event)
    fold.finish()
    return fold
