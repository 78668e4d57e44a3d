# SPDX-License-Identifier: Apache-2.0
"""What the coordinator does with each message: no sockets and no threads here.

Every method returns the messages that shall be sent because of it; the server delivers them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gangline.control import (
    Command,
    ControlEvent,
    ControlState,
    MetricsMeasured,
    PublishView,
    WorkersJoined,
    WorkersLeft,
    WorkersLost,
    decide,
)
from gangline.control.changes import Changes
from gangline.control.watch import Watch
from gangline.runtime.coordinator.checkpoints import judge
from gangline.runtime.coordinator.journal import Ended, Journal, NoJournal, Published
from gangline.runtime.coordinator.lookout import Lookout, Question
from gangline.runtime.coordinator.replay import Memory, replay
from gangline.runtime.coordinator.roster import Roster
from gangline.runtime.coordinator.status import Status
from gangline.runtime.coordinator.tally import Tally
from gangline.runtime.messages import (
    CheckpointWritten,
    Dismissed,
    Exhausted,
    Failed,
    FromCoordinator,
    FromWorker,
    Goodbye,
    Hello,
    Leaving,
    Measured,
    Metrics,
    Ping,
    Pong,
    Probed,
    Ready,
    Refused,
    ViewPublished,
    founders_group,
)
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.eventlog import EventSink
    from gangline.spec.view import View


MAX_GATHERINGS = 5
"""So often founders may fail to reach each other while none of them is lost."""

_OVER = Refused(reason="the job is over, its workers have ended")
_LEFT_BEHIND = Refused(
    reason=(
        "the job has ended without this worker, which did not answer for too long: its parameters "
        "are not those that were trained. Take those of the others, or of the last checkpoint"
    ),
    is_left_behind=True,
)


class Outgoing(NamedTuple):
    """A message, and the worker that it goes to."""

    worker: int
    message: FromCoordinator


class Hub:
    """The coordinator's mind and memory."""

    def __init__(
        self,
        *,
        run: str,
        expected_workers: int,
        events: EventSink,
        clock: Callable[[], float] = time.time,
        reserved: int = 0,
        journal: Journal | None = None,
    ) -> None:
        """Goes on where the journal ends. Workers bring the numbers below `reserved` themselves."""
        self._run = run
        self._events = events
        self._clock = clock
        self._journal = journal or NoJournal()
        memory = replay(self._journal.records)
        self._roster = Roster(memory, self._journal, expected=expected_workers, reserved=reserved)
        self._changes = Changes()
        self._dismissed = memory.dismissed
        self._is_over = False
        self._metrics: dict[int, Metrics] = {}
        self._control: ControlState | None = None
        self._tally = Tally(())
        self._lookout = Lookout(self._roster, clock())
        self._seed = 0
        self._group = -1
        self._member_since: dict[int, int] = {}
        """The group from which on each present member has been in all."""
        self._step = -1
        self._decisions: list[str] = []
        self._is_recovered = False
        """Whether the present group replaced a broken one."""
        self._resume(memory)

    @property
    def _view(self) -> View | None:
        return None if self._control is None else self._control.view

    @property
    def _members(self) -> tuple[int, ...]:
        """Who takes part; before there is a view, the founders."""
        if self._control is not None:
            return self._control.members
        return () if self._roster.founded is None else self._roster.founded.members

    # --- connections -----------------------------------------------------------------------------

    def connect(self, hello: Hello) -> tuple[int, list[Outgoing]]:
        """A worker said hello: its number, and what to tell whom.

        Raises UsageError, for the worker to read, if it does not belong here.
        """
        self._roster.check(hello, run=self._run, members=self._members)
        is_known = hello.worker in self._dismissed or self._roster.has_trained(hello.worker)
        if self._is_over and not is_known:
            raise UsageError(_OVER.reason)
        worker, is_new = self._roster.greet(hello)
        if is_new:
            self._dismissed.discard(worker)
            self._lookout.cut.forget(worker)
        self._lookout.watch.hear(worker, self._clock())
        return worker, self._gather() if self._roster.found() else self._catch_up(worker)

    def disconnect(self, worker: int) -> None:
        """A worker's connection is gone; the worker itself may be well."""
        self._changes.forget(worker)
        self._lookout.watch.lose_connection(worker, self._clock())
        self._roster.lose_connection(worker)

    def expect_without(self, worker: int) -> list[Outgoing]:
        """Whoever starts the workers says that one has ended: the founders do not wait for it."""
        self._roster.lose_connection(worker)
        self._roster.expected -= self._roster.founded is None
        return self._gather() if self._roster.found() else []

    def tick(self) -> list[Outgoing]:
        """Time has passed: looks whether somebody is missing, and grants what was asked for."""
        return self._look() + self._change()

    def _gather(self) -> list[Outgoing]:
        """The founders are there, and shall shake hands."""
        now = self._clock()
        self._lookout.watch_over(Watch(self._members, now), now)
        hellos = sorted(self._roster.hellos)
        return [Outgoing(one, self._roster.gathered(one, None)) for one in hellos]

    def _catch_up(self, worker: int) -> list[Outgoing]:
        """What a worker that comes late, or comes back, must know."""
        if self._roster.founded is None:
            return []
        view = self._view
        missed: list[FromCoordinator] = [self._roster.gathered(worker, view)]
        is_dismissed = worker in self._dismissed
        if self._is_over and not is_dismissed:
            missed.append(_LEFT_BEHIND)
        elif view is not None:
            was_in = worker in view.members or is_dismissed or self._roster.has_trained(worker)
            command = PublishView(view=view, is_recovery=self._is_recovered)
            missed += [self._published(command)] if was_in else []
            missed += [Dismissed()] if is_dismissed else []
        return [Outgoing(worker, message) for message in missed]

    def _published(self, command: PublishView) -> ViewPublished:
        return ViewPublished(
            view=command.view,
            addresses=self._roster.addresses(command.view.members),
            seed=self._seed,
            is_recovery=command.is_recovery,
        )

    # --- messages --------------------------------------------------------------------------------

    def receive(self, worker: int, message: FromWorker) -> list[Outgoing]:
        """A worker said something after its hello."""
        self._lookout.watch.hear(worker, self._clock())
        match message:
            case Ping(sent_s=sent_s, waiting_s=waiting_s):
                self._lookout.watch.report_waiting(worker, waiting_s, self._clock())
                return [Outgoing(worker, Pong(sent_s=sent_s))]
            case Ready():
                return self._on_ready(worker, message)
            case Measured():
                return self._on_measured(worker, message)
            case Metrics():
                return self._on_metrics(worker, message)
            case Failed():
                return self._on_failed(worker, message)
            case Probed():
                return self._on_probed(worker, message)
            case CheckpointWritten():
                return self._on_checkpoint(worker, message)
            case Exhausted(max_samples=max_samples):
                self._roster.lower_ceiling(worker, max_samples)
                return []
            case Leaving():
                return self._on_leaving(worker)
            case Goodbye():
                return self._on_goodbye(worker)
            case Hello():
                raise UsageError(f"worker {worker} said hello twice on one connection")

    def _on_ready(self, worker: int, ready: Ready) -> list[Outgoing]:
        self._roster.set_ready(worker, ready)
        if self._control is not None and worker in self._control.members:
            return []  # its line was down, and it says everything again
        self._roster.workers[worker].state = "ready"
        if self._control is not None or worker not in self._members:
            self._changes.want_in(worker)
        if self._control is not None or not self._roster.can_begin:
            return []
        try:
            return self._begin(self._members)
        except UsageError as error:
            return [Outgoing(member, Refused(reason=str(error))) for member in self._roster.ready]

    def _begin(self, members: tuple[int, ...]) -> list[Outgoing]:
        self._seed = self._roster.ready[members[0]].seed
        self._control = ControlState.begin(self._roster.options)
        return self._decide(
            WorkersJoined(
                workers=members,
                speeds=self._roster.speeds(members),
                max_samples=self._roster.ceilings(members),
            )
        )

    def _change(self) -> list[Outgoing]:
        """Grants the wishes of those that want in or out, when the time is right."""
        if self._control is None or self._is_over:
            return []
        due = self._lookout.cut.due(self._clock())
        asked = _asked(self._lookout.ask(due)) if due else []
        change = self._changes.next(self._control.members)
        if change is None or change.last in self._dismissed:
            return asked
        if change.last is not None:
            self._dismissed.add(change.last)
            return [*asked, Outgoing(change.last, Dismissed())]
        if change.leaving:
            return asked + self._decide(WorkersLeft(workers=change.leaving))
        ceilings = self._roster.ceilings(change.joining)
        try:
            joined = WorkersJoined(workers=change.joining, max_samples=ceilings)
            return asked + self._decide(joined)
        except UsageError as error:
            for worker in change.joining:
                self._changes.forget(worker)
            return [Outgoing(worker, Refused(reason=str(error))) for worker in change.joining]

    def _on_failed(self, worker: int, failed: Failed) -> list[Outgoing]:
        view = self._view
        founded = self._roster.founded
        if view is not None and worker in self._dismissed:
            return [Outgoing(worker, Dismissed())]
        if view is not None and worker not in view.members and failed.group >= 0:
            return self._take_back(worker)
        if view is not None:
            present = view.group
        else:
            present = founders_group(0 if founded is None else founded.attempt)
        if failed.group == present:
            self._lookout.watch.report_failure(worker, failed.error, self._clock())
        return self._look()

    def _take_back(self, worker: int) -> list[Outgoing]:
        """A worker that was put out is back."""
        if self._is_over:
            return [Outgoing(worker, _LEFT_BEHIND)]
        if worker in self._lookout.cut:
            self._lookout.cut.want_in(worker)
        else:
            self._changes.want_in(worker)
        return []

    def _on_probed(self, worker: int, probed: Probed) -> list[Outgoing]:
        if self._lookout.hear_answer(worker, probed):
            self._changes.want_in(worker)
        return self._look()

    def _on_checkpoint(self, worker: int, written: CheckpointWritten) -> list[Outgoing]:
        since = self._member_since.get(worker)
        answer, refused = judge(worker, written, member_since=since, now=self._clock())
        if refused is not None:
            self._events.write(refused)
        return [Outgoing(worker, answer)]

    def ask_to_leave(self, worker: int) -> list[Outgoing]:
        """Somebody wants a worker to go. Raises UsageError where it cannot."""
        members = () if self._control is None else self._control.members
        if worker not in members:
            names = ", ".join(str(member) for member in members) or "nobody yet"
            raise UsageError(f"worker {worker} does not take part in this job; who does: {names}")
        self._roster.check_elastic(members, what="leave")
        return self._on_leaving(worker)

    def _on_leaving(self, worker: int) -> list[Outgoing]:
        self._roster.workers[worker].state = "leaving"
        self._changes.want_out(worker)
        if self._control is None or worker in self._control.members:
            return []
        self._dismissed.add(worker)
        return [Outgoing(worker, Dismissed())]

    def _on_goodbye(self, worker: int) -> list[Outgoing]:
        workers = self._roster.workers
        workers[worker].state = "gone"
        self._changes.forget(worker)
        members = () if self._control is None else self._control.members
        newcomers = self._changes.newcomers if self._group > 0 else frozenset()
        if not all(workers[one].state == "gone" for one in {*members} - newcomers):
            return []
        if members and not self._is_over:
            self._is_over = True
            self._journal.append(Ended())
        late = sorted({*newcomers, *self._changes.waiting, *self._lookout.cut.waiting})
        has_trained = self._roster.has_trained
        return [Outgoing(one, _LEFT_BEHIND if has_trained(one) else _OVER) for one in late]

    # --- who is lost -----------------------------------------------------------------------------

    def _look(self) -> list[Outgoing]:
        """Looks whether somebody is lost, and has that decided."""
        if self._is_over:
            return []
        has_tried = self._is_recovered and not self._lookout.watch.has_stepped
        may_retry = self._control is not None and not has_tried
        seen = self._lookout.look(self._clock(), may_retry=may_retry)
        if seen is None:
            return []
        if isinstance(seen, Question):
            return _asked(seen)
        for worker in seen.workers:
            self._roster.workers[worker].state = "lost"
        if self._control is not None:
            return self._decide(WorkersLost(workers=seen.workers, reason=seen.reason))
        return self._found_again(seen.workers, seen.reason)

    def _found_again(self, lost: tuple[int, ...], reason: str) -> list[Outgoing]:
        """A founder is lost before there is a view: the others begin without it."""
        founded, members = self._roster.founded, self._members
        assert founded is not None
        if not self._roster.is_elastic(members):
            return []  # they notice it themselves, and end
        if not lost and founded.attempt + 1 >= MAX_GATHERINGS:
            refusal = Refused(reason=f"the founders do not get in touch with each other: {reason}")
            return [Outgoing(member, refusal) for member in members]
        self._roster.found_again(lost)
        left = len(self._members)
        reason = f"{reason}; {left} of {len(members)} founders begin"
        numbers = {"lost": float(len(lost)), "founders": float(left)}
        self._say(Decision(t=self._clock(), what="gather_again", reason=reason, numbers=numbers))
        return self._gather()

    def _on_measured(self, worker: int, report: Measured) -> list[Outgoing]:
        status = self._roster.workers[worker]
        status.state = "leaving" if status.state == "leaving" else "training"
        self._changes.see_step(report.view)
        status.step, status.samples = report.step, report.samples
        status.compute_s = report.compute_s
        self._lookout.watch.report_step(
            self._clock(), step=report.step, is_own=self._changes.is_settled
        )
        outgoing = []
        for measured in self._tally.add(worker, report):
            self._step = measured.step
            outgoing += self._decide(measured)
        return outgoing

    def _on_metrics(self, worker: int, metrics: Metrics) -> list[Outgoing]:
        self._metrics[worker] = metrics
        members = () if self._control is None else self._control.members
        if not members or not set(members) <= set(self._metrics):
            return []
        rows = [self._metrics[member] for member in members]
        return self._decide(
            MetricsMeasured(
                workers=members,
                operations_per_s=np.array([row.operations_per_s for row in rows]),
                memory_bytes=np.array([row.memory_bytes for row in rows]),
                latency_s=np.array([row.latency_s for row in rows]),
            )
        )

    # --- decisions -------------------------------------------------------------------------------

    def _decide(self, event: ControlEvent) -> list[Outgoing]:
        assert self._control is not None
        self._control, commands = decide(self._control, event, self._clock())
        outgoing = []
        for command in commands:
            outgoing += self._carry_out(command)
        return outgoing

    def _carry_out(self, command: Command) -> list[Outgoing]:
        if not isinstance(command, PublishView):
            self._say(command.decision)
            return []
        view = command.view
        out: tuple[int, ...] = ()
        if view.group != self._group:
            out = tuple(sorted({*self._member_since} - {*view.members}))
            self._begin_group(command)
        leaving = () if command.is_recovery else out
        self._dismissed = (self._dismissed | {*leaving}) - {*view.members}
        self._journal.append(Published(view=view, is_recovery=command.is_recovery, leaving=leaving))
        message = self._published(command)
        # Those that leave must hold the view too: the members agree on one that all of them hold.
        # And who was put out, because it is cut from its peers, learns from nobody else that it is.
        told = [Outgoing(worker, message) for worker in (*view.members, *out)]
        return told + [Outgoing(worker, Dismissed()) for worker in leaving]

    def _begin_group(self, command: PublishView) -> None:
        view = command.view
        self._changes.begin_group(view.number, old=tuple(self._member_since), new=view.members)
        self._is_recovered = command.is_recovery
        self._group = view.group
        self._member_since = {
            member: self._member_since.get(member, view.group) for member in view.members
        }
        self._tally = Tally(view.members)
        now = self._clock()
        self._lookout.watch_over(self._lookout.watch.succeed(view.members, now), now)

    def _say(self, decision: Decision) -> None:
        self._events.write(decision)
        self._decisions = [*self._decisions, decision.reason][-20:]

    # --- after a restart -------------------------------------------------------------------------

    def _resume(self, memory: Memory) -> None:
        """Goes on where the coordinator of before was killed; its workers will come back."""
        if memory.founded is None:
            return
        now, view = self._clock(), memory.view
        if view is not None:
            self._seed = self._roster.ready[memory.founded.members[0]].seed
            self._group, self._is_recovered = view.group, memory.is_recovery
            self._member_since = memory.member_since
            self._control = ControlState.resume(
                self._roster.options,
                view,
                max_samples=self._roster.ceilings(view.members),
                weights=self._roster.speeds(view.members) or (1.0,) * len(view.members),
            )
            self._tally = Tally(view.members)
            self._changes.begin_group(memory.first_view, old=view.members, new=view.members)
        self._lookout.resume(Watch(self._members, now, has_stepped=view is not None), now)
        count, number = len(self._members), -1 if view is None else view.number
        reason = f"the coordinator was started again: {count} members, view {number}"
        numbers = {"view": float(number), "members": float(count)}
        self._say(Decision(t=now, what="resume", reason=reason, numbers=numbers))

    def status(self) -> Status:
        """A snapshot for people."""
        return Status(
            run=self._run,
            expected_workers=self._roster.expected,
            workers=[self._roster.workers[worker] for worker in sorted(self._roster.workers)],
            view=self._view,
            step=self._step,
            decisions=self._decisions,
        )


def _asked(question: Question) -> list[Outgoing]:
    return [Outgoing(worker, question.probe) for worker in question.workers]
