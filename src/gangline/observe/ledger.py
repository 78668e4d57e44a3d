# SPDX-License-Identifier: Apache-2.0
"""The ledger of a run: which samples of which epoch each committed step used.

    ledger = read_ledger(read_run(Path("runs/digits")))
    ledger.check(length=1437, epochs=3)        # raises LogError where a sample is missing or used twice

A step is committed if a member reported it and no later group went back behind it. When a group is
lost, one member alone may have finished a step; if it is lost too, the others do that step again.
`Regrouped` says with which step a group goes on, so reports of that step and later ones, in views
before the group's first, are void. One thing can bring such a report back: a worker that hung may have
finished the step alone and return before the others did it again. Then they copy its state, and the
next group goes on behind that step though nobody else reported it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from gangline.observe.losses import describe_loss
from gangline.observe.ranges import cut_alike
from gangline.observe.team_ledger import TeamOrders
from gangline.observe.window import Window
from gangline.spec.errors import LogError
from gangline.spec.event import (
    EventsLost,
    Regrouped,
    SamplesGone,
    StepDone,
    StepsDone,
    StepSummary,
    ViewAdopted,
)
from gangline.spec.leases import Lease, leave_out

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangline.spec.event import Event

Report: TypeAlias = StepDone | StepsDone | StepSummary
"""Somebody did a step, or several alike: one worker, or many of whom one line speaks."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """All committed steps of a run, in their order."""

    windows: tuple[Window, ...]
    num_void: int
    """Reports that do not count, because their step was done again."""
    contradictions: tuple[str, ...] = ()
    """Steps that were committed in more than one way."""
    gone: tuple[SamplesGone, ...] = ()
    """Samples that went with the only worker that had them: nobody need have used them since."""
    missing: tuple[str, ...] = ()
    """Events that the logs lack: what they would have said, the ledger does not know."""

    @property
    def num_epochs(self) -> int:
        """Epochs of which a step was committed."""
        return 1 + max((window.epoch for window in self.windows), default=-1)

    @property
    def num_steps(self) -> int:
        """Steps that were committed."""
        return sum(window.steps for window in self.windows)

    @property
    def num_samples(self) -> int:
        """All samples that committed steps used."""
        return sum(window.stop - window.start for window in self.windows)

    def count_lost(self, *, length: int | None = None) -> int:
        """Samples before the last one that was used which no step used; of `length` in each epoch."""
        lost = 0
        for epoch in range(self.num_epochs):
            is_over = length is not None and epoch < self.num_epochs - 1
            unused = _unused(self._of(epoch), length=length if is_over and length else 0)
            lost += sum(stop - start for start, stop in self._missed(epoch, unused))
        return lost

    def _missed(self, epoch: int, unused: Iterable[Lease]) -> list[Lease]:
        """What of these somebody should have used: without what was gone with its owner."""
        gone = [Lease(one.start, one.stop) for one in self.gone if one.epoch <= epoch]
        return [part for start, stop in unused for part in leave_out(start, stop, gone)]

    def count_repeated(self) -> int:
        """Samples that were used more often than once in an epoch; each further time counts."""
        repeated = 0
        for epoch in range(self.num_epochs):
            end = 0
            for window in self._of(epoch):
                repeated += max(0, min(end, window.stop) - window.start)
                end = max(end, window.stop)
        return repeated

    def problems(self, *, length: int, epochs: int | None = None) -> list[str]:
        """What is wrong, if `epochs` (all that began) of `length` samples each are complete."""
        found = list(self.contradictions)
        count = self.num_epochs if epochs is None else epochs
        for epoch in range(max(count, self.num_epochs)):
            found += self._gaps(epoch, length=length if epoch < count else 0)
        for window in self.windows:
            found += _miscounts(window)
        return found

    def _gaps(self, epoch: int, *, length: int) -> list[str]:
        """Samples that no window holds, and those that several hold."""
        found, end = [], 0
        for window in self._of(epoch):
            place = f"epoch {epoch}, step {window.step}"
            for start, stop in self._missed(epoch, [Lease(end, window.start)]):
                found.append(f"{place}: the samples {start} to {stop - 1} were left out before it")
            if window.start < end:
                last = min(end, window.stop) - 1
                found.append(f"{place}: the samples {window.start} to {last} were used before")
            end = max(end, window.stop)
        for start, stop in self._missed(epoch, [Lease(end, length)]):
            found.append(f"epoch {epoch}: the samples {start} to {stop - 1} were not used")
        if end > length > 0:
            found.append(f"epoch {epoch} used {end} samples of {length}")
        return found

    def _of(self, epoch: int) -> list[Window]:
        """The windows of an epoch, in the order of its samples."""
        windows = [window for window in self.windows if window.epoch == epoch]
        return sorted(windows, key=lambda one: (one.start, one.step))

    def check(self, *, length: int, epochs: int | None = None) -> None:
        """Raises LogError unless each sample of each epoch was used exactly once."""
        found = self.problems(length=length, epochs=epochs)
        if found and self.missing:
            raise LogError(
                f"{'; '.join(self.missing)}. So it cannot be told whether the samples of this run were "
                f"used exactly once each: {'; '.join(found)}"
            )
        if found:
            raise LogError(
                "the samples of this run were not used exactly once each: " + "; ".join(found)
            )


def read_ledger(events: Iterable[Event]) -> Ledger:
    """The committed steps in the events of a run, in whatever order they come."""
    kept = list(events)
    missing = tuple(describe_loss(event) for event in kept if isinstance(event, EventsLost))
    gone = tuple(event for event in kept if isinstance(event, SamplesGone))
    return msgspec.structs.replace(_read(kept), missing=missing, gone=gone)


def _read(kept: list[Event]) -> Ledger:
    orders = TeamOrders(kept)
    if not orders.is_used:
        return _read_group(kept)
    parts: dict[int, list[Event]] = {}
    for event in kept:
        if isinstance(event, StepDone | StepsDone | Regrouped | ViewAdopted):
            parts.setdefault(event.team, []).append(event)
    for team in orders.teams:
        parts.setdefault(team, [])
    ledgers = {team: _read_group(part) for team, part in sorted(parts.items())}
    return Ledger(
        windows=tuple(
            window
            for team, ledger in ledgers.items()
            for window in orders.merged(team, ledger.windows)
        ),
        num_void=sum(ledger.num_void for ledger in ledgers.values()),
        contradictions=tuple(
            f"team {team}: {text}" for team, one in ledgers.items() for text in one.contradictions
        ),
    )


def _read_group(events: Iterable[Event]) -> Ledger:
    """The ledger of workers that make every step together."""
    reports: list[Report] = []
    restarts: set[tuple[int, int]] = set()
    members: dict[int, tuple[int, ...]] = {}
    for event in events:
        match event:
            case StepDone() | StepsDone() | StepSummary():
                reports.append(event)
            case Regrouped(view=view, step=step):
                restarts.add((view, step))
                members[view] = tuple(event.members)
            case ViewAdopted(view=view):
                members[view] = tuple(event.members)
    by_step: dict[int, list[Report]] = {}
    void: list[Report] = []
    for report in cut_alike(reports, {step for _, step in restarts}):
        if _voided_by(report, restarts) is None:
            by_step.setdefault(report.step, []).append(report)
        else:
            void.append(report)
    revived = [one for one in void if one.step not in by_step and _is_taken_over(one, restarts)]
    for report in revived:
        by_step.setdefault(report.step, []).append(report)
    return Ledger(
        windows=tuple(_window(by_step[step], members) for step in sorted(by_step)),
        num_void=len(void) - len(revived),
        contradictions=tuple(
            f"step {step} was committed in different ways: {sorted(ways)}"
            for step, group in sorted(by_step.items())
            if len(ways := {(one.epoch, one.view, one.start, one.stop) for one in group}) > 1
        )
        + tuple(text for _, group in sorted(by_step.items()) for text in _misparted(group)),
    )


def _voided_by(report: Report, restarts: set[tuple[int, int]]) -> int | None:
    """The first view of the group that went back behind this step; None if none did."""
    return min(
        (view for view, step in restarts if report.view < view and report.step >= step),
        default=None,
    )


def _is_taken_over(report: Report, restarts: set[tuple[int, int]]) -> bool:
    """Whether a group after the one that voided the report goes on behind its step after all."""
    voided = _voided_by(report, restarts)
    assert voided is not None
    return any(view > voided and step > report.step for view, step in restarts)


def _window(reports: list[Report], members: dict[int, tuple[int, ...]]) -> Window:
    first = reports[0]
    return Window(
        step=first.step,
        epoch=first.epoch,
        start=first.start,
        stop=first.stop,
        samples={one.worker: one.samples for one in reports if not isinstance(one, StepSummary)},
        steps=first.steps if isinstance(first, StepsDone) else 1,
        members=members.get(first.view, ()),
    )


def _misparted(reports: list[Report]) -> list[str]:
    """Where parts of a step were pulled: parts that are not its own, or that two have computed.

    Then those of all members make up the step if their numbers do, which is counted elsewhere.
    """
    found: list[str] = []
    pulled = [one for one in reports if isinstance(one, StepDone) and one.parts]
    for one in pulled:
        count = sum(stop - start for start, stop in one.parts)
        if count != one.samples:
            found.append(
                f"step {one.step}: worker {one.worker} computed {one.samples} samples, and its parts "
                f"have {count}"
            )
    end = min((one.start for one in pulled), default=0)
    for start, stop, worker in sorted((*part, one.worker) for one in pulled for part in one.parts):
        if start < end or stop > pulled[0].stop:
            found.append(
                f"step {pulled[0].step}: the samples {start} to {stop - 1} of worker {worker} are not "
                "its own: somebody else has some of them, or they are of another step"
            )
        end = max(end, stop)
    return found


def _unused(windows: Iterable[Window], *, length: int) -> list[Lease]:
    """Samples that no window holds, before the last one that is held, or up to `length`."""
    found, end = [], 0
    for window in windows:
        if window.start > end:
            found.append(Lease(end, window.start))
        end = max(end, window.stop)
    return [*found, Lease(end, length)] if end < length else found


def _miscounts(window: Window) -> list[str]:
    """Whether the workers' parts make up the window; of a lost worker no report may be left."""
    total, told = window.stop - window.start, sum(window.samples.values())
    is_whole = bool(window.members) and set(window.members) == set(window.samples)
    if told > total or (is_whole and told < total):
        return [f"step {window.step}: its workers computed {told} samples of {total}"]
    return []
