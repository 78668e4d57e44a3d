# SPDX-License-Identifier: Apache-2.0
"""Puts the steps of a run together as its events come, without keeping those that are done.

A step is given on when everybody who should take part in it has reported, or when its team is far
beyond it: somebody's report was lost with it then.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from gangline.observe.page.aligning import Aligner
from gangline.observe.timeline import (
    Step,
    accounted_s,
    assemble_step,
    is_plausible,
    last_tried,
    step_of,
)
from gangline.spec.event import StepDone, StepsDone, ViewAdopted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gangline.observe.pauses import Pauses

_MOST_BEHIND = 64
"""How many steps a team may be ahead of a report that is still waited for."""
_COMMON = (
    *("t", "worker", "step", "epoch", "view", "samples", "start", "stop", "team"),
    *("compute_s", "data_s", "exchange_s", "update_s", "turn_s"),
)
"""What a range of steps has in common with a step."""


class Stretch(NamedTuple):
    """A step; or several that were summed up, whose times are added."""

    step: Step
    num_steps: int
    took_s: float
    """All of them, by the worker in the middle."""
    samples: int
    """Of all of them, and all workers."""
    is_complete: bool
    """Whether everybody's report is there."""


class Stepper:
    """Takes events, gives steps."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self.num_implausible = 0
        self.num_incomplete = 0
        """Steps that lack somebody's report."""
        self.is_summed = False
        """Whether workers summed up steps: those that they did not are of interest."""
        self._pending: dict[tuple[int, int], dict[int, StepDone]] = {}
        self._newest: dict[int, int] = {}
        self._members: dict[tuple[int, int], frozenset[int]] = {}
        self._before: dict[int, StepDone] = {}
        self._aligners: dict[tuple[int, int], Aligner] = {}

    def adopt(self, view: ViewAdopted) -> None:
        """Who takes part from now on."""
        self._members.setdefault((view.team, view.view), frozenset(view.members))

    def add(self, event: StepDone | StepsDone) -> list[Stretch]:
        """The steps that are whole now."""
        if isinstance(event, StepsDone):
            return self._take_range(event)
        if not is_plausible(event):
            self.num_implausible += 1
            return []
        return self._take(event)

    def finish(self) -> Iterator[Stretch]:
        """What is left, at the end of the logs."""
        for key in sorted(self._pending):
            yield self._give(key)
        for (team, _), aligner in self._aligners.items():
            for ranges in aligner.finish():
                yield self._give_range(team, ranges)

    def _take(self, record: StepDone) -> list[Stretch]:
        given = []
        key = (record.team, record.step)
        records = self._pending.setdefault(key, {})
        records[record.worker] = record
        members = self._members.get((record.team, record.view))
        if members is not None and len(records) >= len(members) and members <= records.keys():
            given.append(self._give(key))
        if record.step > self._newest.get(record.team, -1):
            self._newest[record.team] = record.step
            given += self._give_up()
        return given

    def _give_up(self) -> Iterator[Stretch]:
        """Steps so far behind that nobody will report them any more; the oldest come first."""
        while self._pending:
            key = next(iter(self._pending))
            if key[1] > self._newest.get(key[0], -1) - _MOST_BEHIND:
                return
            yield self._give(key)

    def _give(self, key: tuple[int, int]) -> Stretch:
        team, number = key
        records = last_tried(self._pending.pop(key))
        before = {
            worker: old
            for worker in records
            if (old := self._before.get(worker)) is not None
            and (old.team, old.step) == (team, number - 1)
        }
        step = assemble_step(number, team, records, before=before, pauses=self._pauses)
        self._before.update(records)
        return self._stretch(step, 1)

    def _take_range(self, event: StepsDone) -> list[Stretch]:
        self.is_summed = True
        if event.steps < 1 or not is_plausible(_as_step(event)):
            self.num_implausible += 1
            return []
        key = (event.team, event.view)
        members = self._members.get(key)
        ranges = self._aligners.setdefault(key, Aligner()).add(event, members)
        return [self._give_range(event.team, one) for one in ranges]

    def _give_range(self, team: int, ranges: Mapping[int, StepsDone]) -> Stretch:
        records = {worker: _as_step(one) for worker, one in ranges.items()}
        first = next(iter(ranges.values()))
        elapsed_s = {w: self._elapsed_s(one) for w, one in ranges.items()}
        step = step_of(first.step, team, records, elapsed_s)
        return self._stretch(step, first.steps)

    def _elapsed_s(self, one: StepsDone) -> float:
        paused_s = self._pauses.within(one.since, one.t)
        return max(accounted_s(one), one.t - one.since - paused_s)

    def _stretch(self, step: Step, count: int) -> Stretch:
        members = self._members.get((step.team, step.view))
        is_complete = members is None or members <= step.records.keys()
        self.num_incomplete += 0 if is_complete else count
        return Stretch(step, count, median(step.elapsed_s.values()), step.samples, is_complete)


def _as_step(event: StepsDone) -> StepDone:
    """The range as if it were one step."""
    return StepDone(**{name: getattr(event, name) for name in _COMMON})
