# SPDX-License-Identifier: Apache-2.0
"""How a run stands: folded from its events as they come, for a line of progress and other tools."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gangline.observe.live.curves import Curves
from gangline.spec.event import (
    Decision,
    EpochDone,
    GoalSet,
    Logged,
    RunStarted,
    StepDone,
    StepsDone,
    ViewAdopted,
    WorkerEnded,
    WorkerReady,
)

if TYPE_CHECKING:
    from gangline.spec.event import Event

_GOING_ON = ("resume_steps", "end", "notice")
"""Decisions that end a pause."""
WINDOW_S = 5.0
"""The pace is that of so many last seconds."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What can be said of a run now; None where it is not known."""

    t: float
    epoch: int
    epochs: int
    """How many the script means to do; 0: it does not say."""
    step: int
    samples_per_s: float | None
    step_s: float | None
    efficiency: float | None
    """Of the compute-only optimum; None unless the logs of all members are here."""
    logged: dict[str, float | None]
    members: tuple[int, ...]
    out: tuple[int, ...]
    """Workers that took part and do not now."""
    shares: dict[int, int]
    num_teams: int
    decision: str
    """The reason of the last one."""
    decided_t: float
    left_s: float | None
    is_paused: bool = False
    """An operator has it stand still: it has no pace."""


class _Work(NamedTuple):
    """Steps of one worker."""

    t: float
    steps: int
    samples: int
    total: int
    """Samples of the global batches."""
    compute_s: float


class _Worker:
    """The last seconds of one worker."""

    def __init__(self) -> None:
        self.recent: deque[_Work] = deque()
        self.team = 0
        self.step = -1
        self.epoch = 0
        self.stop = 0
        self.was_paused = False
        """Whether its next step is the first after a pause, which is part of no pace."""

    def add(self, event: StepDone | StepsDone) -> None:
        count = event.steps if isinstance(event, StepsDone) else 1
        work = _Work(event.t, count, event.samples, event.stop - event.start, event.compute_s)
        if event.team != self.team or self.was_paused:
            self.recent.clear()
            self.was_paused = False
        self.team, self.epoch, self.stop = event.team, event.epoch, event.stop
        self.step = event.step + count - 1
        self.recent.append(work)
        while len(self.recent) > 2 and self.recent[-1].t - self.recent[0].t > WINDOW_S:
            self.recent.popleft()

    @property
    def elapsed_s(self) -> float:
        """The time of all recent steps but the first."""
        return self.recent[-1].t - self.recent[0].t if len(self.recent) > 1 else 0.0

    @property
    def since(self) -> list[_Work]:
        """The recent steps whose time is known."""
        return list(self.recent)[1:]


class LiveRun:
    """Takes events, in any order between workers; `standing` says what they come to."""

    def __init__(self) -> None:
        self.curves = Curves()
        self._workers: dict[int, _Worker] = {}
        self._views: dict[int, ViewAdopted] = {}
        self._team_of: dict[int, tuple[float, int]] = {}
        """The team of each worker, and since when: a team that was parted has no last view."""
        self._ended: dict[int, float] = {}
        self._known: set[int] = set()
        self._started: RunStarted | None = None
        self._goal: GoalSet | None = None
        self._length = 0
        self._decision: Decision | None = None
        self._is_paused = False
        self._t = 0.0

    def note(self, event: Event) -> None:
        """Something happened."""
        self._t = max(self._t, event.t)
        match event:
            case StepDone() | StepsDone():
                self._workers.setdefault(event.worker, _Worker()).add(event)
            case Logged():
                self.curves.note(event)
            case ViewAdopted():
                self._adopt(event)
            case WorkerEnded():
                self._ended[event.worker] = event.t
            case RunStarted():
                self._started = event
            case WorkerReady():
                self._length = max(self._length, event.samples_per_epoch)
            case EpochDone():
                self._length = max(self._length, event.samples)
            case GoalSet():
                self._goal = event
            case Decision():
                self._decision = event
                self._note_pause(event.what)

    def _note_pause(self, what: str) -> None:
        if what == "pause":
            self._is_paused = True
        elif self._is_paused and what in _GOING_ON:
            self._is_paused = False
            for worker in self._workers.values():
                worker.was_paused = True

    def _adopt(self, view: ViewAdopted) -> None:
        before = self._views.get(view.team)
        if before is not None and view.view < before.view:
            return
        whole = {
            team: one for team, one in self._views.items() if bool(one.whole) == bool(view.whole)
        }
        self._views = {**whole, view.team: view}
        self._known |= set(view.members)
        for member in view.members:
            if view.t >= self._team_of.get(member, (view.t, 0))[0]:
                self._team_of[member] = (view.t, view.team)
            if view.t > self._ended.get(member, view.t):
                del self._ended[member]  # it came back

    def name_of(self, worker: int) -> str:
        """The name of a worker's node; its number where it has none."""
        nodes = [] if self._started is None else self._started.nodes
        return nodes[worker] if worker < len(nodes) else str(worker)

    def standing(self) -> Standing | None:
        """How the run stands; None before its first step."""
        if not self._workers:
            return None
        lead = max(self._workers.values(), key=lambda one: one.recent[-1].t)
        shares = self._shares(lead)
        members = tuple(sorted(m for team in shares.values() for m in team))
        teams = {} if self._is_paused else self._teams(shares)
        rates = {team: _rate(one) for team, one in teams.items()}
        rate = sum(one for one in rates.values() if one) or None
        decision = self._decision
        return Standing(
            t=self._t,
            epoch=lead.epoch,
            epochs=0 if self._goal is None else self._goal.epochs,
            step=lead.step,
            samples_per_s=rate,
            step_s=None if self._is_paused else _step_s(lead),
            efficiency=self._efficiency(teams, rates, shares),
            logged=self.curves.newest(),
            members=members,
            out=tuple(sorted(self._known - set(members))) if members else (),
            shares={member: share for team in shares.values() for member, share in team.items()},
            num_teams=max(1, len(shares)),
            decision="" if decision is None else decision.reason,
            decided_t=0.0 if decision is None else decision.t,
            left_s=None if self._is_paused else self._left_s(lead, rate),
            is_paused=self._is_paused,
        )

    def _shares(self, lead: _Worker) -> dict[int, dict[int, int]]:
        """By team, the shares of its members: who moved on, or ended before a step, is none."""
        last_t = lead.recent[-1].t
        found = {
            team: {
                member: share
                for member, share in zip(view.members, view.shares, strict=True)
                if self._team_of[member][1] == team and self._ended.get(member, last_t) >= last_t
            }
            for team, view in self._views.items()
        }
        return {team: shares for team, shares in found.items() if shares}

    def _teams(self, shares: dict[int, dict[int, int]]) -> dict[int, _Worker]:
        """Of every team that steps the worker that was heard last."""
        found: dict[int, _Worker] = {}
        for one in self._workers.values():
            known = found.get(one.team)
            if known is None or one.recent[-1].t > known.recent[-1].t:
                found[one.team] = one
        return {team: one for team, one in found.items() if team in shares or not shares}

    def _efficiency(
        self,
        teams: dict[int, _Worker],
        rates: dict[int, float | None],
        shares: dict[int, dict[int, int]],
    ) -> float | None:
        """Of all teams, by their samples; None where somebody's log is not here."""
        parts = [
            (rates[team], _optimum_rate([self._workers.get(m) for m in shares[team]]))
            for team in teams
            if team in shares
        ]
        if not parts or any(rate is None or best is None for rate, best in parts):
            return None
        total = sum(best for _, best in parts if best is not None)
        return min(1.0, sum(rate for rate, _ in parts if rate is not None) / total)

    def _left_s(self, lead: _Worker, rate: float | None) -> float | None:
        goal, step_s = self._goal, _step_s(lead)
        if goal is None:
            return None
        if goal.steps and step_s is not None:
            return max(0, goal.steps - lead.step - 1) * step_s
        is_parted = any(view.whole for view in self._views.values())
        if not (goal.epochs and self._length and rate) or is_parted:
            return None
        done = lead.epoch * self._length + lead.stop
        return max(0, goal.epochs * self._length - done) / rate


def _step_s(worker: _Worker) -> float | None:
    count = sum(work.steps for work in worker.since)
    return worker.elapsed_s / count if count and worker.elapsed_s > 0 else None


def _rate(worker: _Worker) -> float | None:
    """The samples per second of a worker's team."""
    total = sum(work.total for work in worker.since)
    return total / worker.elapsed_s if total and worker.elapsed_s > 0 else None


def _optimum_rate(members: list[_Worker | None]) -> float | None:
    """The samples per second if all computed all the time; None where somebody's are not known."""
    rate = 0.0
    for member in members:
        if member is None:
            return None
        samples = sum(work.samples for work in member.recent)
        compute_s = sum(work.compute_s for work in member.recent)
        rate += samples / compute_s if compute_s > 0 else 0.0
    return rate or None
