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
    ControlOptions,
    ControlState,
    MetricsMeasured,
    PublishView,
    WorkersJoined,
    WorkersLeft,
    WorkersLost,
    decide,
)
from gangline.runtime.coordinator.changes import Changes
from gangline.runtime.coordinator.greeting import check_elastic, check_hello, number_of
from gangline.runtime.coordinator.journal import (
    Ended,
    Founded,
    Greeted,
    Journal,
    NoJournal,
    Published,
    Readied,
)
from gangline.runtime.coordinator.replay import Memory, replay
from gangline.runtime.coordinator.status import Status, WorkerStatus
from gangline.runtime.coordinator.tally import Tally
from gangline.runtime.coordinator.watch import Watch
from gangline.runtime.messages import (
    CheckpointAnswered,
    CheckpointWritten,
    Dismissed,
    Failed,
    FromCoordinator,
    FromWorker,
    Gathered,
    Goodbye,
    Hello,
    Leaving,
    Measured,
    Metrics,
    Ping,
    Pong,
    Ready,
    Refused,
    ViewPublished,
)
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.eventlog import EventSink


RETURN_S = 3.0
"""After a restart, how long members may take to come back before anybody is taken to be lost."""


_OVER = "the job is over, its workers have ended"


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
        self._expected = expected_workers
        self._events = events
        self._clock = clock
        self._reserved = reserved
        self._journal = journal or NoJournal()
        self._changes = Changes()
        self._dismissed: set[int] = set()
        self._is_over = False
        self._workers: dict[int, WorkerStatus] = {}
        self._hellos: dict[int, Hello] = {}
        self._ready: dict[int, Ready] = {}
        self._metrics: dict[int, Metrics] = {}
        self._founders: tuple[int, ...] | None = None
        self._control: ControlState | None = None
        self._tally = Tally(())
        self._watch = Watch((), clock())
        self._seed = 0
        self._group = -1
        self._member_since: dict[int, int] = {}
        """The group from which on each present member has been in all."""
        self._step = -1
        self._decisions: list[str] = []
        self._is_recovered = False
        """Whether the present group replaced a broken one."""
        self._resumed_s: float | None = None
        self._resume(replay(self._journal.records))

    # --- connections -----------------------------------------------------------------------------

    def connect(self, hello: Hello) -> tuple[int, list[Outgoing]]:
        """A worker said hello: its number, and what to tell whom.

        Raises UsageError, for the worker to read, if it does not belong here.
        """
        self._check(hello)
        worker = number_of(hello, hellos=self._hellos, reserved=self._reserved)
        known = self._workers.get(worker)
        if known is not None and known.pid != hello.pid:
            self._dismissed.discard(worker)
        if self._hellos.get(worker) != hello:
            self._journal.append(Greeted(worker=worker, hello=hello))
        self._hellos[worker] = hello
        self._workers[worker] = WorkerStatus(
            worker=worker,
            host=hello.host,
            pid=hello.pid,
            is_connected=True,
            state="connected" if known is None or known.pid != hello.pid else known.state,
        )
        self._watch.hear(worker, self._clock())
        if self._founders is not None:
            return worker, self._catch_up(worker)
        founders = [one for one in self._hellos if not self._reserved or one < self._reserved]
        if len(founders) < self._expected:
            return worker, []
        self._founders = tuple(sorted(founders))
        self._journal.append(Founded(founders=self._founders))
        return worker, [Outgoing(one, self._gathered(one)) for one in sorted(self._hellos)]

    def disconnect(self, worker: int) -> None:
        """A worker's connection is gone; the worker itself may be well."""
        self._changes.forget(worker)
        self._watch.lose_connection(worker, self._clock())
        if worker in self._workers:
            self._workers[worker].is_connected = False
        if self._founders is None:  # whoever is not there when the job begins is no founder
            self._hellos.pop(worker, None)

    def tick(self) -> list[Outgoing]:
        """Time has passed: looks whether somebody is missing, and grants what was asked for."""
        return self._look() + self._change()

    def _check(self, hello: Hello) -> None:
        check_hello(hello, run=self._run, known=self._workers.get(hello.worker))
        if self._is_over and not self._has_trained(hello.worker):
            raise UsageError(_OVER)
        members = () if self._control is None else self._control.members
        if self._founders is not None and hello.worker not in {*self._founders, *members}:
            check_elastic([self._hellos[one] for one in members], what="join")

    def _gathered(self, worker: int) -> Gathered:
        assert self._founders is not None
        view = None if self._control is None else self._control.view
        members = self._founders if view is None else view.members
        is_founder = view is None and worker in members
        return Gathered(
            worker=worker,
            members=members if is_founder else tuple(m for m in members if m != worker),
            addresses=tuple(self._hellos[member].address for member in members)
            if is_founder
            else (),
        )

    def _catch_up(self, worker: int) -> list[Outgoing]:
        """What a worker that comes late, or comes back, must know."""
        missed: list[FromCoordinator] = [self._gathered(worker)]
        view = None if self._control is None else self._control.view
        if view is not None and (worker in view.members or worker in self._dismissed):
            missed.append(self._published(PublishView(view=view, is_recovery=self._is_recovered)))
        if view is not None and worker in self._dismissed:
            missed.append(Dismissed())
        return [Outgoing(worker, message) for message in missed]

    def _published(self, command: PublishView) -> ViewPublished:
        members = command.view.members
        return ViewPublished(
            view=command.view,
            addresses=tuple(self._hellos[member].address for member in members),
            seed=self._seed,
            is_recovery=command.is_recovery,
        )

    # --- messages --------------------------------------------------------------------------------

    def receive(self, worker: int, message: FromWorker) -> list[Outgoing]:
        """A worker said something after its hello."""
        self._watch.hear(worker, self._clock())
        match message:
            case Ping(sent_s=sent_s):
                return [Outgoing(worker, Pong(sent_s=sent_s))]
            case Ready():
                return self._on_ready(worker, message)
            case Measured():
                return self._on_measured(worker, message)
            case Metrics():
                return self._on_metrics(worker, message)
            case Failed():
                return self._on_failed(worker, message)
            case CheckpointWritten():
                return self._on_checkpoint(worker, message)
            case Leaving():
                return self._on_leaving(worker)
            case Goodbye():
                return self._on_goodbye(worker)
            case Hello():
                raise UsageError(f"worker {worker} said hello twice on one connection")

    def _on_ready(self, worker: int, ready: Ready) -> list[Outgoing]:
        if self._ready.get(worker) != ready:
            self._journal.append(Readied(worker=worker, ready=ready))
        self._ready[worker] = ready
        founders = self._founders or ()
        if self._control is not None and worker in self._control.members:
            return []  # its line was down, and it says everything again
        self._workers[worker].state = "ready"
        if self._control is not None or worker not in founders:
            self._changes.want_in(worker)
        if self._control is not None or not founders or not set(founders) <= set(self._ready):
            return []
        try:
            return self._begin(founders)
        except UsageError as error:
            return [Outgoing(member, Refused(reason=str(error))) for member in self._ready]

    def _begin(self, members: tuple[int, ...]) -> list[Outgoing]:
        first = self._ready[members[0]]
        self._seed = first.seed
        self._control = ControlState.begin(_options(first))
        return self._decide(
            WorkersJoined(
                workers=members,
                speeds=first.shares,
                max_samples=tuple(self._ceiling(self._ready[member]) for member in members),
            )
        )

    def _change(self) -> list[Outgoing]:
        """Grants the wishes of those that want in or out, when the time is right."""
        if self._control is None or self._is_over:
            return []
        change = self._changes.next(self._control.members)
        if change is None or change.last in self._dismissed:
            return []
        if change.last is not None:
            self._dismissed.add(change.last)
            return [Outgoing(change.last, Dismissed())]
        if change.leaving:
            return self._decide(WorkersLeft(workers=change.leaving))
        ceilings = tuple(self._ceiling(self._ready[worker]) for worker in change.joining)
        try:
            return self._decide(WorkersJoined(workers=change.joining, max_samples=ceilings))
        except UsageError as error:
            for worker in change.joining:
                self._changes.forget(worker)
            return [Outgoing(worker, Refused(reason=str(error))) for worker in change.joining]

    def _ceiling(self, ready: Ready) -> int:
        return ready.global_batch if ready.max_samples is None else ready.max_samples

    def _on_failed(self, worker: int, failed: Failed) -> list[Outgoing]:
        view = None if self._control is None else self._control.view
        if view is None:
            return []
        if worker in self._dismissed:
            return [Outgoing(worker, Dismissed())]
        if worker not in view.members:  # it was put out, and is back
            self._changes.want_in(worker)
            return []
        if failed.group == view.group:
            self._watch.report_failure(worker, failed.error, self._clock())
        return self._look()

    def _on_checkpoint(self, worker: int, written: CheckpointWritten) -> list[Outgoing]:
        """Agrees if the worker has been in all groups since: then its state is the job's."""
        since = self._member_since.get(worker)
        is_agreed = since is not None and since <= written.group
        reason = f"the job went on without worker {worker} since it copied step {written.step}"
        if not is_agreed:  # what is agreed on is said by the worker, when the marker has moved
            numbers = {"worker": worker, "step": written.step, "group": written.group}
            self._events.write(
                Decision(t=self._clock(), what="checkpoint_refused", reason=reason, numbers=numbers)
            )
        answer = CheckpointAnswered(
            step=written.step, is_agreed=is_agreed, reason="" if is_agreed else reason
        )
        return [Outgoing(worker, answer)]

    def ask_to_leave(self, worker: int) -> list[Outgoing]:
        """Somebody wants a worker to go. Raises UsageError where it cannot."""
        members = () if self._control is None else self._control.members
        if worker not in members:
            names = ", ".join(str(member) for member in members) or "nobody yet"
            raise UsageError(f"worker {worker} does not take part in this job; who does: {names}")
        check_elastic([self._hellos[member] for member in members], what="leave")
        return self._on_leaving(worker)

    def _on_leaving(self, worker: int) -> list[Outgoing]:
        self._workers[worker].state = "leaving"
        self._changes.want_out(worker)
        if self._control is None or worker in self._control.members:
            return []
        self._dismissed.add(worker)
        return [Outgoing(worker, Dismissed())]

    def _on_goodbye(self, worker: int) -> list[Outgoing]:
        self._workers[worker].state = "gone"
        self._changes.forget(worker)
        members = () if self._control is None else self._control.members
        newcomers = self._changes.newcomers if self._group > 0 else frozenset()
        if not all(self._workers[one].state == "gone" for one in {*members} - newcomers):
            return []
        if members and not self._is_over:
            self._is_over = True
            self._journal.append(Ended())
        # Who was put out and is back too late has nothing left to do; others came in vain.
        self._dismissed |= {one for one in self._workers if self._has_trained(one)}
        waiting = {*newcomers, *self._changes.waiting}
        gone, refused = Dismissed(), Refused(reason=_OVER)
        return [
            Outgoing(one, gone if self._has_trained(one) else refused) for one in sorted(waiting)
        ]

    def _has_trained(self, worker: int) -> bool:
        status = self._workers.get(worker)
        return status is not None and status.step >= 0

    def _look(self) -> list[Outgoing]:
        """Asks the watch whether somebody is lost, and has that decided."""
        if self._is_awaiting_members():
            return []
        found = self._watch.find_lost(self._clock())
        if found is None or self._control is None:
            return []
        workers, reason = found
        for worker in workers:
            self._workers[worker].state = "lost"
        return self._decide(WorkersLost(workers=workers, reason=reason))

    def _on_measured(self, worker: int, report: Measured) -> list[Outgoing]:
        status = self._workers[worker]
        status.state = "leaving" if status.state == "leaving" else "training"
        self._changes.see_step(report.view)
        status.step, status.samples = report.step, report.samples
        status.compute_s = report.compute_s
        self._watch.report_step(self._clock())
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
        if isinstance(command, PublishView):
            view = command.view
            leaving: tuple[int, ...] = ()
            if view.group != self._group:
                old = tuple(self._member_since)
                leaving = () if command.is_recovery else tuple(sorted({*old} - {*view.members}))
                self._changes.begin_group(view.number, old=old, new=view.members)
                self._dismissed = (self._dismissed | {*leaving}) - {*view.members}
                self._is_recovered = command.is_recovery
                self._group = view.group
                self._member_since = {
                    member: self._member_since.get(member, view.group) for member in view.members
                }
                self._tally = Tally(view.members)
                self._watch = Watch(view.members, self._clock())
                for member in view.members:
                    if not self._workers[member].is_connected:
                        self._watch.lose_connection(member, self._clock())
            self._journal.append(
                Published(view=view, is_recovery=command.is_recovery, leaving=leaving)
            )
            message = self._published(command)
            # Those that leave must hold the view too: the members agree on one that all of them hold.
            told = [Outgoing(worker, message) for worker in (*view.members, *leaving)]
            return told + [Outgoing(worker, Dismissed()) for worker in leaving]
        self._events.write(command.decision)
        self._decisions = [*self._decisions, command.decision.reason][-20:]
        return []

    # --- after a restart -------------------------------------------------------------------------

    def _resume(self, memory: Memory) -> None:
        """Goes on where the coordinator of before was killed; its workers will come back."""
        if memory.founders is None:
            return
        self._founders, self._ready = memory.founders, memory.ready
        self._hellos, self._dismissed = memory.hellos, memory.dismissed
        for worker, hello in self._hellos.items():
            self._workers[worker] = WorkerStatus(
                worker=worker, host=hello.host, pid=hello.pid, is_connected=False, state="connected"
            )
        view = memory.view
        if view is None:
            return
        now = self._clock()
        first = self._ready[memory.founders[0]]
        weights = dict(zip(memory.founders, first.shares or (), strict=False))
        self._seed, self._group, self._resumed_s = first.seed, view.group, now
        self._is_recovered, self._member_since = memory.is_recovery, memory.member_since
        self._control = ControlState.resume(
            _options(first),
            view,
            max_samples=tuple(self._ceiling(self._ready[member]) for member in view.members),
            weights=tuple(weights.get(member, 1.0) for member in view.members),
        )
        self._tally, self._watch = Tally(view.members), Watch(view.members, now, has_stepped=True)
        self._changes.begin_group(memory.first_view, old=view.members, new=view.members)
        for member in view.members:
            self._watch.lose_connection(member, now)
        reason = (
            f"the coordinator was started again: {len(view.members)} members, view {view.number}"
        )
        self._decisions.append(reason)
        numbers = {"view": float(view.number), "members": float(len(view.members))}
        self._events.write(Decision(t=now, what="resume", reason=reason, numbers=numbers))

    def _is_awaiting_members(self) -> bool:
        """Whether a restart is so recent that who is not here may still come back."""
        if self._resumed_s is None or self._control is None:
            return False
        is_all_here = all(self._workers[one].is_connected for one in self._control.members)
        if is_all_here or self._clock() - self._resumed_s > RETURN_S:
            self._resumed_s = None
        return self._resumed_s is not None

    def status(self) -> Status:
        """A snapshot for people."""
        return Status(
            run=self._run,
            expected_workers=self._expected,
            workers=[self._workers[worker] for worker in sorted(self._workers)],
            view=None if self._control is None else self._control.view,
            step=self._step,
            decisions=self._decisions,
        )


def _options(first: Ready) -> ControlOptions:
    """What the run was asked for, from what its first founder was."""
    return ControlOptions(
        global_batch=first.global_batch,
        allocation=first.allocation if first.shares is None else "fixed",
        minimum=first.minimum,
        seed=first.seed,
    )
