# SPDX-License-Identifier: Apache-2.0
"""The workers' reports on their steps, from one worker or from many at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.control import StepWeighed
from gangline.coordinator.sanity import check_report
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.control import StepMeasured
    from gangline.coordinator.mind import Mind
    from gangline.coordinator.outgoing import Outgoing
    from gangline.coordinator.reports.bunch import Bunch
    from gangline.protocol.messages import Measured


class StepReports:
    """Hears reports, and has decided what a step calls for."""

    def __init__(self, mind: Mind, clock: Callable[[], float]) -> None:
        self._mind = mind
        self._clock = clock

    def hear(self, worker: int, report: Measured) -> list[Outgoing]:
        """A worker reports a step. Raises UsageError where that cannot be."""
        mind = self._mind
        view, total = mind.view, 0 if mind.control is None else int(mind.control.shares.sum())
        check_report(report, newest=-1 if view is None else view.number, total=total)
        if not mind.tally.believes(worker, report.step):
            return self._doubt(worker, report.step)
        mind.changes.see_step(report.view)
        mind.roster.workers.note(
            worker, step=report.step, samples=report.samples, compute_s=report.compute_s
        )
        mind.lookout.watch.report_step(
            self._clock(),
            step=report.step,
            is_own=mind.changes.is_settled,
            exchange_s=report.exchange_s,
        )
        return self._note(mind.tally.add(worker, report, self._clock()))

    def weigh(self, worker: int, expected: Measured) -> list[Outgoing]:
        """A worker says what it expects of a step that is not exchanged yet."""
        mind, view = self._mind, self._mind.view
        if view is None or expected.view != view.number or not mind.is_under_way:
            return []
        # Who is left out before its first exchange has a part in the job, and gets its final state.
        mind.roster.workers.note(
            worker,
            step=expected.step,
            samples=expected.samples,
            compute_s=expected.compute_s,
        )
        complete = mind.weighed.add(worker, expected, self._clock())
        return [out for one in complete for out in mind.decide(StepWeighed(expected=one))]

    def takes(self, bunch: Bunch) -> bool:
        """Whether the reports of many come to the same at once as one after the other."""
        mind = self._mind
        view, control = mind.view, mind.control
        if view is None or control is None or bunch.given.view > view.number:
            return False
        is_newest = bunch.given.view == view.number
        is_sane = not is_newest or int(bunch.samples.max(initial=0)) <= int(control.shares.sum())
        return is_sane and mind.tally.takes(bunch)

    def hear_many(self, bunch: Bunch) -> list[Outgoing]:
        """Many workers report a step; with the effects of their single reports."""
        mind = self._mind
        now, given = self._clock(), bunch.given
        mind.lookout.watch.hear_many(bunch.workers, now)
        mind.changes.see_step(given.view)
        mind.roster.workers.note_many(bunch)
        mind.lookout.watch.report_step(
            now,
            step=given.step,
            is_own=mind.changes.is_settled,
            exchange_s=float(bunch.exchange_s.min()),
        )
        return self._note(mind.tally.add_many(bunch, now))

    def _note(self, complete: list[StepMeasured]) -> list[Outgoing]:
        return [out for measured in complete for out in self._mind.note_step(measured)]

    def _doubt(self, worker: int, step: int) -> list[Outgoing]:
        if self._mind.tally.must_tell(worker):
            reason = f"worker {worker} claims step {step}, where no other member is near"
            numbers = {"worker": float(worker), "step": float(step)}
            self._mind.say(Decision(t=self._clock(), what="doubt", reason=reason, numbers=numbers))
        return []
