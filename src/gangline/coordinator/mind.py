# SPDX-License-Identifier: Apache-2.0
"""What the coordinator knows of its workers, and how its decisions are carried out.

It decides by `control.decide` alone: whatever happens is told to it as an event, and its commands
become messages. The hub (`hub`), which has one, hears what workers say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.control import (
    Command,
    ControlEvent,
    ControlState,
    ExclusionAsked,
    KeepPlan,
    LowerRate,
    PartChanged,
    PublishView,
    ReturnAsked,
    Say,
    StepMeasured,
    TakeBack,
    WorkersJoined,
    decide,
)
from gangline.control.members.changes import Changes
from gangline.coordinator.kept.memory import Memory, replay
from gangline.coordinator.kept.records import Ended, KeptOut, Published
from gangline.coordinator.members.lookout import Lookout
from gangline.coordinator.members.roster import Roster
from gangline.coordinator.outgoing import Outgoing
from gangline.coordinator.reports.metrics import OwnMetrics
from gangline.coordinator.reports.tally import Tally
from gangline.coordinator.reports.verdict import Verdict
from gangline.coordinator.structure.replanning import Replanning
from gangline.protocol.messages import (
    Dismissed,
    Hello,
    Ready,
    Stopped,
    ViewPublished,
)
from gangline.protocol.status import Status
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.coordinator.kept.records import Journal
    from gangline.coordinator.settings import Settings
    from gangline.coordinator.structure.replanning import PlanSink
    from gangline.eventlog import EventSink
    from gangline.spec.exchange.address import WireAddress
    from gangline.spec.position import Position
    from gangline.spec.view import View, Whole


class Mind:
    """The members, their view, and what was decided."""

    def __init__(
        self,
        settings: Settings,
        *,
        events: EventSink,
        clock: Callable[[], float],
        journal: Journal,
        whole: Whole | None,
        plans: PlanSink | None,
    ) -> None:
        """Goes on where the journal ends; `plans` keeps the structures that are planned.

        `whole` is what the workers are a part of, where they are one team of several.
        """
        self._run = settings.run
        self._events = events
        self._clock = clock
        self._journal = journal
        memory = replay(self._journal.records)
        self.roster = Roster(memory, journal, settings, whole=whole)
        self.replanning = Replanning(
            self.roster,
            profile=settings.profile,
            plans=plans,
            journal=journal,
            restored=memory.restructured,
        )
        self.changes = Changes()
        """Who wants in or out."""
        self.dismissed = memory.dismissed
        """Who may go."""
        self.kept_out = memory.kept_out
        """Whom an operator keeps out."""
        self.verdict = Verdict(memory.finished)
        self.lookout = Lookout(self.roster, clock(), patience_s=settings.patience_s)
        self.is_over = False
        """Whether all members have said goodbye, or the job has ended with an error."""
        self.stopped: Stopped | None = None
        """Why the job has ended with an error for everybody."""
        self.control: ControlState | None = None
        """What is known of the members; None before there is a view."""
        self.group = -1
        """The number of the group that the members exchange in."""
        self.is_recovered = False
        """Whether that group replaced a broken one."""
        self.tally = Tally(())
        """The reports of that group."""
        self.weighed = Tally(())
        """What its members say of their first steps before these are exchanged."""
        self._member_since: dict[int, int] = {}
        """The group from which on each present member has been in all."""
        self.metrics = OwnMetrics()
        self._seed = 0
        self._step = -1
        self._decisions: list[str] = []
        self._wants_lower_rate = False
        self._resume(memory)

    @property
    def view(self) -> View | None:
        """By which the members train; None before there is one."""
        return None if self.control is None else self.control.view

    @property
    def participants(self) -> tuple[int, ...]:
        """Who takes part; before there is a view, the founders."""
        if self.control is not None:
            return self.control.members
        return () if self.roster.founded is None else self.roster.founded.members

    def is_member(self, worker: int) -> bool:
        """Whether a worker takes part; as `participants`, but it does not go through thousands."""
        if self.control is not None and self.control.view is not None:
            return worker in self._member_since
        return self.roster.is_founder(worker)

    @property
    def spares(self) -> set[int]:
        """Who was put out for being slow."""
        spares = () if self.control is None else self.control.oversight.spares
        return {spare.worker for spare in spares}

    @property
    def present_spares(self) -> list[int]:
        """Those of them that are connected, and can be asked back."""
        spares = self.spares - self.dismissed
        return sorted(one for one in spares if self.roster.workers[one].is_connected)

    @property
    def members(self) -> tuple[int, ...]:
        """Who takes part, in rank order; nobody before there is a view."""
        return () if self.control is None else self.control.members

    @property
    def come(self) -> int:
        """How many workers have come; none once the job is over."""
        return 0 if self.is_over else len(self.roster.hellos)

    @property
    def is_connected(self) -> bool:
        """Whether any of the members is connected."""
        return any(self.has_line(member) for member in self.members)

    def has_line(self, worker: int) -> bool:
        """Whether a worker is connected."""
        return self.roster.workers[worker].is_connected

    @property
    def present(self) -> tuple[int, ...]:
        """The members that have not said goodbye, and whose processes are not known to have ended."""
        workers, ended = self.roster.workers, self.roster.ended
        return tuple(m for m in self.members if workers[m].state != "gone" and m not in ended)

    @property
    def has_all_ended(self) -> bool:
        """Whether the processes of all members are known to have ended."""
        return bool(self.members) and self.roster.ended.issuperset(self.members)

    @property
    def is_under_way(self) -> bool:
        """Whether there are members, and they have not ended."""
        return self.control is not None and not self.is_over

    def member_since(self, worker: int) -> int | None:
        """The group from which on a worker has been in all; None for who is no member."""
        return self._member_since.get(worker)

    @property
    def is_settled(self) -> bool:
        """Whether the members have begun to train in their present group."""
        return self.changes.is_settled

    @property
    def ended(self) -> dict[int, Position]:
        """Whose script has ended by itself, and where."""
        return self.verdict.ended

    def stop(self, stopped: Stopped) -> list[Outgoing]:
        """Ends the job with an error for everybody who has not ended."""
        self.stopped = stopped
        self.end()
        return [
            Outgoing(worker, stopped)
            for worker, one in self.roster.workers.items()
            if one.is_connected and one.state != "gone"
        ]

    def end(self) -> None:
        """The job is over: who comes back will find it so."""
        self.is_over = True
        self._journal.append(Ended())

    @property
    def founding(self) -> dict[int, Ready] | None:
        """Of founders that wait to be made teams: what they are ready for; None where none do."""
        if self.control is not None or not (self.roster.can_begin and self.roster.is_relaxed):
            return None
        return {worker: self.roster.ready[worker] for worker in self.participants}

    @property
    def hellos(self) -> dict[int, Hello]:
        """Everybody who ever said hello."""
        return self.roster.hellos

    @property
    def founders(self) -> tuple[int, ...]:
        """Who began the job, in the order of their ranks then."""
        return () if self.roster.founded is None else self.roster.founded.founders

    def readied(self, worker: int) -> Ready | None:
        """What a worker was ready for."""
        return self.roster.ready.get(worker)

    def take_lower_rate(self) -> bool:
        """Whether these workers, a team, should be merged with others more rarely; once."""
        wanted, self._wants_lower_rate = self._wants_lower_rate, False
        return wanted

    def recall(self) -> bool:
        """All spares are to come back; whether there are any."""
        for worker in self.present_spares:
            self.changes.want_in(worker)
        return bool(self.present_spares)

    def keep_out(self, worker: int) -> list[Outgoing]:
        """An operator wants a worker kept out, without which others go on."""
        self._journal.append(KeptOut(worker=worker, is_out=True))
        self.kept_out.add(worker)
        self.changes.forget(worker)
        (ceiling,) = self.roster.ceilings((worker,))
        return self.decide(ExclusionAsked(worker=worker, max_samples=ceiling))

    def ask_back(self, worker: int) -> list[Outgoing]:
        """An operator wants a worker back."""
        self._journal.append(KeptOut(worker=worker, is_out=False))
        self.kept_out.discard(worker)
        return self.decide(ReturnAsked(worker=worker))

    def change_part(self, part: PartChanged) -> list[Outgoing]:
        """The members' part of the job is another one."""
        return self.decide(part) if self.is_under_way else []

    # --- decisions -------------------------------------------------------------------------------

    def gather(self) -> list[Outgoing]:
        """The founders are there, and shall shake hands."""
        now = self._clock()
        self.lookout.watch_over(self.lookout.begin(self.participants, now), now)
        return [Outgoing(one.worker, one) for one in self.roster.gather()]

    def begin(self) -> list[Outgoing]:
        """The founders are ready, and get their first view."""
        members = self.participants
        self._seed = self.roster.ready[members[0]].seed
        self.control = ControlState.begin(self.replanning.applied_to(self.roster.options))
        return self.decide(
            WorkersJoined(
                workers=members,
                speeds=self.roster.speeds(members),
                max_samples=self.roster.ceilings(members),
            )
        )

    def decide(self, event: ControlEvent) -> list[Outgoing]:
        """Something happened that may call for a decision: what to tell whom."""
        assert self.control is not None
        before = self.control.options
        metrics = self.metrics.take(self.members)
        if metrics is not None:
            self.control, _ = decide(self.control, metrics, self._clock())
        self.control, commands = decide(self.control, event, self._clock())
        self.replanning.note(before, self.control.options)
        outgoing = []
        for command in commands:
            outgoing += self._carry_out(command)
        return outgoing

    def note_step(self, measured: StepMeasured) -> list[Outgoing]:
        """What a step cost is known of all members."""
        self._step = measured.step
        return self.decide(measured)

    def _carry_out(self, command: Command) -> list[Outgoing]:
        if isinstance(command, KeepPlan):
            self.replanning.keep(command, self._events)
            return []
        if isinstance(command, LowerRate):
            self._wants_lower_rate = True
        if isinstance(command, TakeBack):
            self.changes.want_in(command.worker)
        elif isinstance(command, Say):
            self.say(command.decision)
        if not isinstance(command, PublishView):
            return []
        view = command.view
        out: tuple[int, ...] = ()
        if view.group != self.group:
            out = tuple(sorted({*self._member_since} - {*view.members}))
            self._begin_group(command)
        leaving = () if command.is_recovery else out
        for worker in self.spares & {*out}:
            self.roster.workers[worker].state = "spare"
        self.dismissed = (self.dismissed | {*leaving}) - {*view.members}
        self._journal.append(Published(view=view, is_recovery=command.is_recovery, leaving=leaving))
        message = self._published(view, is_recovery=command.is_recovery)
        # Those that leave must hold the view too: the members agree on one that all of them hold.
        # And who was put out, because it is cut from its peers, learns from nobody else that it is.
        told = [Outgoing(worker, message) for worker in (*view.members, *out)]
        return told + [Outgoing(worker, Dismissed()) for worker in leaving]

    def view_again(self) -> ViewPublished:
        """The present view, for who may have missed it."""
        assert self.view is not None
        return self._published(self.view, is_recovery=self.is_recovered)

    def _begin_group(self, command: PublishView) -> None:
        view = command.view
        self.changes.begin_group(view.number, old=tuple(self._member_since), new=view.members)
        self.verdict.begin_group()
        for worker in self.changes.newcomers:
            self.roster.workers[worker].state = "ready"
        self.is_recovered = command.is_recovery
        self.group = view.group
        self._member_since = {
            member: self._member_since.get(member, view.group) for member in view.members
        }
        self._note_late()
        self.tally = Tally(view.members, reached=self._step)
        self.weighed = Tally(view.members)
        now = self._clock()
        self.lookout.watch_over(self.lookout.watch.succeed(view.members, now), now)

    def _note_late(self) -> None:
        """Who came when others had trained already has variables of its own in its loop."""
        first = min(self._member_since.values(), default=0)
        late = [member for member, since in self._member_since.items() if since > first]
        self.verdict.late = late

    def say(self, decision: Decision) -> None:
        """Writes a decision down, where people find it."""
        self._events.write(decision)
        self._decisions = [*self._decisions, decision.reason][-20:]

    # --- after a restart -------------------------------------------------------------------------

    def _resume(self, memory: Memory) -> None:
        """Goes on where the coordinator of before was killed; its workers will come back."""
        if memory.founded is None:
            return
        now, view = self._clock(), memory.view
        if view is not None:
            self._seed = self.roster.ready[memory.founded.members[0]].seed
            self.group, self.is_recovered = view.group, memory.is_recovery
            self._member_since = memory.member_since
            self._note_late()
            self.control = ControlState.resume(
                self.replanning.applied_to(self.roster.options),
                view,
                max_samples=self.roster.ceilings(view.members),
                weights=self.roster.speeds(view.members) or (1.0,) * len(view.members),
            )
            for worker in sorted(self.kept_out - {*view.members}):
                (ceiling,) = self.roster.ceilings((worker,))
                kept = ExclusionAsked(worker=worker, max_samples=ceiling)
                self.control, _ = decide(self.control, kept, now)
                self.roster.workers[worker].state = "spare"
            self.tally = Tally(view.members)
            self.changes.begin_group(memory.first_view, old=view.members, new=view.members)
        watch = self.lookout.begin(self.participants, now, has_stepped=view is not None)
        self.lookout.resume(watch, now)
        count, number = len(self.participants), -1 if view is None else view.number
        reason = f"the coordinator was started again: {count} members, view {number}"
        numbers = {"view": float(number), "members": float(count)}
        self.say(Decision(t=now, what="resume", reason=reason, numbers=numbers))

    def status(self) -> Status:
        """A snapshot for people."""
        return Status(
            run=self._run,
            expected_workers=self.roster.expected,
            workers=[self.roster.workers[worker] for worker in sorted(self.roster.workers)],
            view=self.view,
            step=self._step,
            decisions=self._decisions,
        )

    def _published(self, view: View, *, is_recovery: bool) -> ViewPublished:
        return ViewPublished(
            view=view,
            addresses=self.roster.addresses(view.members),
            seed=self._seed,
            is_recovery=is_recovery,
            spares=self._spare_addresses(),
            pulled=self.roster.pulled,
        )

    def _spare_addresses(self) -> dict[int, WireAddress]:
        """Where the spares are reached, who are told the state with which each epoch begins."""
        spares = self.present_spares if self.roster.whole is None else ()
        return dict(zip(spares, self.roster.addresses(tuple(spares)), strict=True))
