# SPDX-License-Identifier: Apache-2.0
"""What the coordinator knows of its workers, and how its decisions are carried out.

It decides by `control.decide` alone: whatever happens is told to it as an event, and its commands
become messages. The hub (`hub`), which is one, hears what workers say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gangline.control import (
    Command,
    ControlEvent,
    ControlState,
    KeepPlan,
    LowerRate,
    MetricsMeasured,
    PartChanged,
    PublishView,
    Say,
    TakeBack,
    WorkersJoined,
    decide,
)
from gangline.control.members.changes import Changes
from gangline.control.members.watch import MIN_PATIENCE_S
from gangline.coordinator.members.homecoming import Homecoming
from gangline.coordinator.members.lookout import Lookout
from gangline.coordinator.members.roster import Roster
from gangline.coordinator.memory import Memory, replay
from gangline.coordinator.records import Ended, Journal, NoJournal, Published
from gangline.coordinator.replanning import Planning, Replanning
from gangline.coordinator.reports.tally import Tally
from gangline.coordinator.reports.verdict import Verdict
from gangline.protocol.messages import (
    Dismissed,
    FromCoordinator,
    Hello,
    Metrics,
    Ready,
    Stopped,
    ViewPublished,
)
from gangline.protocol.status import Status
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.control import ControlOptions
    from gangline.control.detection import Detector
    from gangline.eventlog import EventSink
    from gangline.spec.position import Position
    from gangline.spec.view import View, Whole


class Outgoing(NamedTuple):
    """A message, and the worker that it goes to."""

    worker: int
    message: FromCoordinator


class Mind:
    """The members, their view, and what was decided."""

    def __init__(
        self,
        *,
        run: str,
        expected_workers: int,
        events: EventSink,
        clock: Callable[[], float],
        reserved: int = 0,
        journal: Journal | None = None,
        whole: Whole | None = None,
        planning: Planning | None = None,
        detector: Detector | None = None,
        patience_s: float = MIN_PATIENCE_S,
        defaults: ControlOptions | None = None,
    ) -> None:
        """Goes on where the journal ends. Workers bring the numbers below `reserved` themselves.

        `whole` is what the workers are a part of, where they are one team of several. A worker may be
        silent for `patience_s` at least. `defaults` says how the job is controlled where its workers
        do not.
        """
        self._run = run
        self._events = events
        self._clock = clock
        self._journal = journal or NoJournal()
        memory = replay(self._journal.records)
        self._roster = Roster(memory, self._journal, expected=expected_workers, reserved=reserved)
        self._roster.whole = whole
        self._roster.detector = detector or self._roster.detector
        self._roster.defaults = defaults
        self._replanning = Replanning(
            planning or Planning(),
            self._roster,
            journal=self._journal,
            restored=memory.restructured,
        )
        self._changes = Changes()
        self._dismissed = memory.dismissed
        self._is_over = False
        self._verdict = Verdict(memory.finished)
        self._stopped: Stopped | None = None
        """Why the job has ended with an error for everybody."""
        self._metrics: dict[int, Metrics] = {}
        self._has_new_metrics = False
        self._control: ControlState | None = None
        self._tally = Tally(())
        self._lookout = Lookout(self._roster, clock(), patience_s=patience_s)
        self._home = Homecoming()
        self._seed = 0
        self._group = -1
        self._member_since: dict[int, int] = {}
        """The group from which on each present member has been in all."""
        self._step = -1
        self._decisions: list[str] = []
        self._wants_lower_rate = False
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

    def _is_member(self, worker: int) -> bool:
        """Whether a worker takes part; as `_members`, but it does not go through thousands."""
        if self._control is not None and self._control.view is not None:
            return worker in self._member_since
        return self._roster.is_founder(worker)

    @property
    def _spares(self) -> set[int]:
        """Who was put out for being slow."""
        spares = () if self._control is None else self._control.oversight.spares
        return {spare.worker for spare in spares}

    @property
    def members(self) -> tuple[int, ...]:
        """Who takes part, in rank order; nobody before there is a view."""
        return () if self._control is None else self._control.members

    @property
    def come(self) -> int:
        """How many workers have come; none once the job is over."""
        return 0 if self._is_over else len(self._roster.hellos)

    @property
    def is_connected(self) -> bool:
        """Whether any of the members is connected."""
        return any(self._roster.workers[member].is_connected for member in self.members)

    @property
    def present(self) -> tuple[int, ...]:
        """The members that have not said goodbye, and whose processes are not known to have ended."""
        workers, ended = self._roster.workers, self._roster.ended
        return tuple(m for m in self.members if workers[m].state != "gone" and m not in ended)

    @property
    def has_all_ended(self) -> bool:
        """Whether the processes of all members are known to have ended."""
        return bool(self.members) and self._roster.ended.issuperset(self.members)

    @property
    def control(self) -> ControlState | None:
        """What is known of the members; None before there is a view."""
        return self._control

    @property
    def is_settled(self) -> bool:
        """Whether the members have begun to train in their present group."""
        return self._changes.is_settled

    @property
    def is_over(self) -> bool:
        """Whether all members have said goodbye."""
        return self._is_over

    @property
    def stopped(self) -> Stopped | None:
        """Why the job has ended with an error for everybody; None where it has not."""
        return self._stopped

    @property
    def ended(self) -> dict[int, Position]:
        """Whose script has ended by itself, and where."""
        return self._verdict.ended

    def stop(self, stopped: Stopped) -> list[Outgoing]:
        """Ends the job with an error for everybody who has not ended."""
        self._stopped, self._is_over = stopped, True
        self._journal.append(Ended())
        return [
            Outgoing(worker, stopped)
            for worker, one in self._roster.workers.items()
            if one.is_connected and one.state != "gone"
        ]

    @property
    def founding(self) -> dict[int, Ready] | None:
        """Of founders that wait to be made teams: what they are ready for; None where none do."""
        if self._control is not None or not (self._roster.can_begin and self._roster.is_relaxed):
            return None
        return {worker: self._roster.ready[worker] for worker in self._members}

    @property
    def hellos(self) -> dict[int, Hello]:
        """Everybody who ever said hello."""
        return self._roster.hellos

    @property
    def founders(self) -> tuple[int, ...]:
        """Who began the job, in the order of their ranks then."""
        return () if self._roster.founded is None else self._roster.founded.founders

    def readied(self, worker: int) -> Ready | None:
        """What a worker was ready for."""
        return self._roster.ready.get(worker)

    def take_lower_rate(self) -> bool:
        """Whether these workers, a team, should be merged with others more rarely; once."""
        wanted, self._wants_lower_rate = self._wants_lower_rate, False
        return wanted

    def change_part(self, part: PartChanged) -> list[Outgoing]:
        """The members' part of the job is another one."""
        return [] if self._control is None or self._is_over else self._decide(part)

    # --- decisions -------------------------------------------------------------------------------

    def _begin(self, members: tuple[int, ...]) -> list[Outgoing]:
        self._seed = self._roster.ready[members[0]].seed
        self._control = ControlState.begin(self._replanning.applied_to(self._roster.options))
        return self._decide(
            WorkersJoined(
                workers=members,
                speeds=self._roster.speeds(members),
                max_samples=self._roster.ceilings(members),
            )
        )

    def _decide(self, event: ControlEvent) -> list[Outgoing]:
        assert self._control is not None
        before = self._control.options
        metrics = self._take_metrics()
        if metrics is not None:
            self._control, _ = decide(self._control, metrics, self._clock())
        self._control, commands = decide(self._control, event, self._clock())
        self._replanning.note(before, self._control.options)
        outgoing = []
        for command in commands:
            outgoing += self._carry_out(command)
        return outgoing

    def _take_metrics(self) -> MetricsMeasured | None:
        """What all members have measured of themselves, if there is news of it."""
        members = self.members
        if not self._has_new_metrics or not members or not {*members} <= {*self._metrics}:
            return None
        self._has_new_metrics = False
        rows = [self._metrics[member] for member in members]
        return MetricsMeasured(
            workers=members,
            operations_per_s=np.array([row.operations_per_s for row in rows]),
            memory_bytes=np.array([row.memory_bytes for row in rows]),
            latency_s=np.array([row.latency_s for row in rows]),
        )

    def _carry_out(self, command: Command) -> list[Outgoing]:
        if isinstance(command, KeepPlan):
            self._replanning.keep(command, self._events)
            return []
        if isinstance(command, LowerRate):
            self._wants_lower_rate = True
        if isinstance(command, TakeBack):
            self._changes.want_in(command.worker)
        elif isinstance(command, Say):
            self._say(command.decision)
        if not isinstance(command, PublishView):
            return []
        view = command.view
        out: tuple[int, ...] = ()
        if view.group != self._group:
            out = tuple(sorted({*self._member_since} - {*view.members}))
            self._begin_group(command)
        leaving = () if command.is_recovery else out
        for worker in self._spares & {*out}:
            self._roster.workers[worker].state = "spare"
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
        self._verdict.begin_group()
        self._is_recovered = command.is_recovery
        self._group = view.group
        self._member_since = {
            member: self._member_since.get(member, view.group) for member in view.members
        }
        self._note_late()
        self._tally = Tally(view.members, reached=self._step)
        now = self._clock()
        self._lookout.watch_over(self._lookout.watch.succeed(view.members, now), now)

    def _note_late(self) -> None:
        """Who came when others had trained already has variables of its own in its loop."""
        first = min(self._member_since.values(), default=0)
        late = [member for member, since in self._member_since.items() if since > first]
        self._verdict.late = late

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
            self._note_late()
            self._control = ControlState.resume(
                self._replanning.applied_to(self._roster.options),
                view,
                max_samples=self._roster.ceilings(view.members),
                weights=self._roster.speeds(view.members) or (1.0,) * len(view.members),
            )
            self._tally = Tally(view.members)
            self._changes.begin_group(memory.first_view, old=view.members, new=view.members)
        watch = self._lookout.begin(self._members, now, has_stepped=view is not None)
        self._lookout.resume(watch, now)
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

    def _published(self, command: PublishView) -> ViewPublished:
        return ViewPublished(
            view=command.view,
            addresses=self._roster.addresses(command.view.members),
            seed=self._seed,
            is_recovery=command.is_recovery,
        )
