# SPDX-License-Identifier: Apache-2.0
"""When a worker was not at work: it had ended, it was a spare, or the whole job stood still."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gangline.observe.pauses import TURNS
from gangline.spec.event import (
    Decision,
    FaultFired,
    Regrouped,
    ViewAdopted,
    WorkerEnded,
    WorkerReady,
)

if TYPE_CHECKING:
    from gangline.spec.event import AnyEvent, StepDone, StepsDone

DOWN = "down"
SPARE = "spare"
PAUSED = "paused"


class Absence(NamedTuple):
    """A worker was away from `begin` to `end`, by the clock of the log."""

    worker: int
    begin: float
    end: float
    why: str


class Presence:
    """Follows who is there."""

    def __init__(self) -> None:
        self.absences: list[Absence] = []
        self._away: dict[int, tuple[float, str]] = {}
        self._newest: dict[int, ViewAdopted] = {}
        self._last_step = 0.0
        self._since: dict[int, float] = {}
        """Since when each worker has made no step, or was back."""
        self._paused: float | None = None

    def add_step(self, event: StepDone | StepsDone) -> None:
        """A worker made a step: it is there, unless that was the last before it was put out."""
        self._last_step = self._since[event.worker] = event.t
        if event.worker in self._away:
            newest = self._newest.get(event.team)
            if newest is not None and event.worker in newest.members:
                self._back(event.worker, event.t)

    def add(self, event: AnyEvent) -> None:
        """What else may have changed it."""
        match event:
            case ViewAdopted():
                self._adopt(event)
            case Decision() if event.what in TURNS:
                self._turn(event.t, is_pause=TURNS[event.what])
            case WorkerEnded():
                self._leave(event.worker, event.t, DOWN)
            case FaultFired(fault="kill"):
                self._leave(event.worker, event.t, DOWN)
            case Regrouped():
                self._back(event.worker, event.t)
            case WorkerReady() if self._away.get(event.worker, (0.0, ""))[1] == DOWN:
                self._back(event.worker, event.t)

    def finish(self, end: float) -> None:
        """Whoever is away stayed so; those that ended after the last step just were done."""
        self._turn(end, is_pause=False)
        for worker, (begin, _) in list(self._away.items()):
            if begin < self._last_step:
                self._back(worker, end)

    def _adopt(self, view: ViewAdopted) -> None:
        newest = self._newest.get(view.team)
        if newest is not None and newest.view >= view.view:
            return
        self._newest[view.team] = view
        there = {worker for one in self._newest.values() for worker in one.members}
        for worker in set(newest.members if newest else ()) - there:
            self._leave(worker, view.t, SPARE)
        for worker in view.members:
            self._back(worker, view.t)

    def _turn(self, t: float, *, is_pause: bool) -> None:
        if is_pause:
            self._paused = t if self._paused is None else self._paused
            return
        for worker in self._since.keys() - self._away.keys():
            self._stood_still(worker, t)
        self._paused = None

    def _stood_still(self, worker: int, t: float) -> None:
        """Up to now, if the job is paused; a step that was under way is made first."""
        if self._paused is not None:
            begin = max(self._paused, self._since.get(worker, t))
            if begin < t:
                self.absences.append(Absence(worker, begin, t, PAUSED))

    def _leave(self, worker: int, t: float, why: str) -> None:
        if worker not in self._away:
            self._stood_still(worker, t)
            self._away[worker] = (t, why)
        elif why == DOWN and self._away[worker][1] == SPARE:
            self._back(worker, t)
            self._away[worker] = (t, DOWN)

    def _back(self, worker: int, t: float) -> None:
        away = self._away.pop(worker, None)
        if away is not None:
            self._since[worker] = t
        if away is not None and t > away[0]:
            self.absences.append(Absence(worker, away[0], t, away[1]))
