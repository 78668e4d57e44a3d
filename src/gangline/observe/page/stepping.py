# SPDX-License-Identifier: Apache-2.0
"""Puts the steps of a run together as its events come, without keeping those that are done.

A step is given on when everybody who should take part in it has reported, or when its team is far
beyond it: somebody's report was lost with it then.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gangline.observe.timeline import assemble_step, is_plausible, last_tried
from gangline.spec.event import StepDone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.observe.timeline import Step
    from gangline.spec.event import StepsDone, ViewAdopted

_MOST_BEHIND = 64
"""How many steps a team may be ahead of a report that is still waited for."""
_SUMMED = {"t", "worker", "step", "epoch", "view", "samples", "start", "stop", "team"}
_TIMES = {"compute_s", "data_s", "exchange_s", "update_s"}


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

    def __init__(self) -> None:
        self.num_implausible = 0
        self.num_incomplete = 0
        """Steps that lack somebody's report."""
        self._pending: dict[tuple[int, int, int], dict[int, StepDone]] = {}
        self._newest: dict[int, int] = {}
        self._members: dict[tuple[int, int], frozenset[int]] = {}
        self._before: dict[int, StepDone] = {}

    def adopt(self, view: ViewAdopted) -> None:
        """Who takes part from now on."""
        self._members.setdefault((view.team, view.view), frozenset(view.members))

    def add(self, event: StepDone | StepsDone) -> list[Stretch]:
        """The steps that are whole now."""
        if isinstance(event, StepDone):
            return self._take(event, 1)
        values = {name: getattr(event, name) for name in _SUMMED | _TIMES}
        return self._take(StepDone(**values), event.steps)

    def finish(self) -> Iterator[Stretch]:
        """What is left, at the end of the logs."""
        for key in sorted(self._pending):
            yield self._give(key)

    def _take(self, record: StepDone, count: int) -> list[Stretch]:
        if not is_plausible(record) or count < 1:
            self.num_implausible += 1
            return []
        given = []
        key = (record.team, record.step, count)
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
            if key[1] + key[2] > self._newest.get(key[0], -1) - _MOST_BEHIND:
                return
            yield self._give(key)

    def _give(self, key: tuple[int, int, int]) -> Stretch:
        team, number, count = key
        records = last_tried(self._pending.pop(key))
        before = {
            worker: old
            for worker in records
            if (old := self._before.get(worker)) is not None and old.step == number - 1
        }
        step = assemble_step(number, team, records, before=before)
        members = self._members.get((team, step.view))
        is_complete = members is None or members <= records.keys()
        self.num_incomplete += not is_complete
        if count == 1:
            self._before.update(records)
        else:
            last = number + count - 1
            for worker, one in records.items():
                self._before[worker] = msgspec.structs.replace(one, step=last)
        return Stretch(step, count, median(step.elapsed_s.values()), step.samples, is_complete)
