# SPDX-License-Identifier: Apache-2.0
"""What the coordinator does with each message: no sockets and no threads here.

Every method returns the messages that shall be sent because of it; the server delivers them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.control import SpareMeasured, WorkersJoined, WorkersLeft
from gangline.coordinator.kept.records import NoJournal, ScriptEnded
from gangline.coordinator.losses import Losses, questions
from gangline.coordinator.members.homecoming import Homecoming
from gangline.coordinator.mind import Mind
from gangline.coordinator.outgoing import LEFT_BEHIND, OVER, Outgoing
from gangline.coordinator.parts import Parts
from gangline.coordinator.reports.checkpoints import judge
from gangline.coordinator.reports.steps import StepReports
from gangline.protocol.messages import (
    CheckpointWritten,
    Dismissed,
    Exhausted,
    Failed,
    FetchState,
    Finished,
    FromCoordinator,
    FromWorker,
    Goodbye,
    Hello,
    Leaving,
    Measured,
    Metrics,
    PartAsked,
    Ping,
    Pong,
    Probed,
    Ready,
    Refused,
    Released,
    Shown,
    StateOffered,
    Weighed,
)
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.coordinator.kept.records import Journal
    from gangline.coordinator.reports.bunch import Bunch
    from gangline.coordinator.settings import Settings
    from gangline.coordinator.structure.replanning import PlanSink
    from gangline.eventlog import EventSink
    from gangline.protocol.lifeline import ProcessEnded
    from gangline.protocol.status import ReplanRequest, Status
    from gangline.spec.view import Whole


class Hub:
    """What the coordinator does with each message; what it knows and decides is its mind's."""

    def __init__(
        self,
        settings: Settings,
        *,
        events: EventSink,
        clock: Callable[[], float],
        journal: Journal | None = None,
        whole: Whole | None = None,
        plans: PlanSink | None = None,
    ) -> None:
        """Goes on where the journal ends; `plans` keeps the structures that are planned.

        `whole` is what the workers are a part of, where they are one team of several.
        """
        self._run = settings.run
        self._events = events
        self._clock = clock
        self._journal = journal or NoJournal()
        self.mind = Mind(
            settings,
            events=events,
            clock=clock,
            journal=self._journal,
            whole=whole,
            plans=plans,
        )
        """What is known of the workers, and was decided."""
        self._home = Homecoming()
        self._losses = Losses(self.mind, self._home, clock)
        self._steps = StepReports(self.mind, clock)
        self._parts = Parts(self.mind)

    def status(self) -> Status:
        """A snapshot for people."""
        return self.mind.status()

    # --- connections -----------------------------------------------------------------------------

    def admit(self, hello: Hello) -> int:
        """Checks and numbers a worker that another hub will look after."""
        self.mind.roster.check(hello, run=self._run, members=self.mind.participants)
        return self.mind.roster.greet(hello)[0]

    def connect(self, hello: Hello) -> tuple[int, list[Outgoing]]:
        """A worker said hello: its number, and what to tell whom.

        Raises UsageError, for the worker to read, if it does not belong here.
        """
        self.mind.roster.check(hello, run=self._run, members=self.mind.participants)
        is_known = hello.worker in self.mind.dismissed or self.mind.roster.has_trained(hello.worker)
        if self.mind.is_over and not is_known:
            raise UsageError(OVER.reason)
        worker, is_new = self.mind.roster.greet(hello)
        if is_new:
            self.mind.dismissed.discard(worker)
            self.mind.lookout.cut.forget(worker)
        self.mind.lookout.watch.hear(worker, self._clock())
        return worker, self.mind.gather() if self.mind.roster.found() else self._catch_up(worker)

    def disconnect(self, worker: int) -> None:
        """A worker's connection is gone; the worker itself may be well."""
        self.mind.changes.forget(worker)
        self._home.leave(worker)
        self.mind.lookout.watch.lose_connection(worker, self._clock())
        self.mind.roster.lose_connection(worker)
        self._home.hang_up(worker, self._clock())

    def see_busy(self, worker: int) -> None:
        """A worker computes, and cannot say so itself."""
        self.mind.lookout.watch.see_busy(worker, self._clock())

    def note_ended(self, ended: ProcessEnded) -> list[Outgoing]:
        """Whoever starts the workers says that one's process is no more: nobody waits for it.

        Unless somebody takes its place: with another number, as the founder that was expected.
        """
        if self.mind.roster.founded is not None:
            if ended.has_failed:
                self.mind.roster.ended.add(ended.worker)
                self.disconnect(ended.worker)
            return self._losses.look()
        self.mind.roster.lose_connection(ended.worker)
        self.mind.roster.expected -= not ended.is_replaced
        return self.mind.gather() if self.mind.roster.found() else []

    def tick(self) -> list[Outgoing]:
        """Time has passed: looks whether somebody is missing, and grants what was asked for."""
        return self._losses.look() + self._change() + self._release()

    def _catch_up(self, worker: int) -> list[Outgoing]:
        """What a worker that comes late, or comes back, must know."""
        if self.mind.roster.founded is None:
            return []
        view = self.mind.view
        missed: list[FromCoordinator] = [self.mind.roster.gathered(worker, view)]
        is_dismissed = worker in self.mind.dismissed
        if self.mind.stopped is not None:
            missed.append(self.mind.stopped)
        elif self.mind.is_over and not is_dismissed:
            missed.append(LEFT_BEHIND)
        elif view is not None:
            was_in = worker in view.members or is_dismissed or self.mind.roster.has_trained(worker)
            missed += [self.mind.view_again()] if was_in else []
            missed += [Dismissed()] if is_dismissed else []
        return [Outgoing(worker, message) for message in missed]

    # --- messages --------------------------------------------------------------------------------

    def receive(self, worker: int, message: FromWorker) -> list[Outgoing]:
        """A worker said something after its hello."""
        self.mind.lookout.watch.hear(worker, self._clock())
        match message:
            case Ping(sent_s=sent_s, waiting_s=waiting_s):
                self.mind.lookout.watch.report_waiting(worker, waiting_s, self._clock())
                return [Outgoing(worker, Pong(sent_s=sent_s))]
            case Ready():
                return self._on_ready(worker, message)
            case Measured():
                return self._steps.hear(worker, message)
            case PartAsked():
                return [Outgoing(worker, self._parts.give(worker, message))]
            case Weighed(expected=expected):
                return self._steps.weigh(worker, expected)
            case Metrics():
                self.mind.metrics.note(worker, message)
                return []
            case Shown(slowdown=slowdown):
                shown = SpareMeasured(worker=worker, slowdown=slowdown)
                return self.mind.decide(shown) if self.mind.is_under_way else []
            case StateOffered():
                return self._on_offer(worker, message)
            case Failed():
                return self._losses.hear_failure(worker, message)
            case Probed():
                return self._losses.hear_answer(worker, message)
            case CheckpointWritten():
                return self._on_checkpoint(worker, message)
            case Exhausted(max_samples=max_samples):
                self.mind.roster.lower_ceiling(worker, max_samples)
                return []
            case Leaving():
                return self._on_leaving(worker)
            case Finished(group=group):
                return self._on_finished(worker, group)
            case Goodbye():
                return self._on_goodbye(worker, message)
            case Hello():
                raise UsageError(f"worker {worker} said hello twice on one connection")
            case _:
                raise UsageError(f"worker {worker} speaks for a team, and this job has none")

    def _on_ready(self, worker: int, ready: Ready) -> list[Outgoing]:
        mind, roster = self.mind, self.mind.roster
        if mind.is_over and not mind.is_member(worker):
            return [Outgoing(worker, LEFT_BEHIND if roster.has_trained(worker) else OVER)]
        try:
            roster.set_ready(worker, ready)
        except UsageError as error:
            return [Outgoing(worker, Refused(reason=str(error)))]
        if mind.control is not None and mind.is_member(worker):
            return []  # its line was down, and it says everything again
        if worker in mind.kept_out:
            roster.workers[worker].state = "spare"
            return []
        roster.workers[worker].state = "ready"
        if mind.control is not None or not mind.is_member(worker):
            mind.changes.want_in(worker)
        if mind.control is not None or not roster.can_begin or roster.is_relaxed:
            return []
        try:
            return mind.begin()
        except UsageError as error:
            return [Outgoing(member, Refused(reason=str(error))) for member in roster.ready]

    def _change(self) -> list[Outgoing]:
        """Grants the wishes of those that want in or out, when the time is right."""
        mind, roster = self.mind, self.mind.roster
        if not mind.is_under_way:
            return []
        due = mind.lookout.cut.due(self._clock())
        asked = questions(mind.lookout.ask(due)) if due else []
        change = mind.changes.next(mind.members)
        wish = mind.replanning.take(is_settled=mind.is_settled and change is None)
        if wish is not None:
            return asked + mind.decide(wish)
        if change is None or change.last in mind.dismissed:
            return asked
        if change.last is not None:
            if mind.recall():
                return asked  # the spares go on in its place
            if roster.newcomers(mind.members, mind.dismissed):
                return asked  # they need somebody whose state they copy
            mind.dismissed.add(change.last)
            return [*asked, Outgoing(change.last, Dismissed())]
        if change.leaving:
            return asked + mind.decide(WorkersLeft(workers=change.leaving))
        if mind.present_spares and not mind.is_connected:
            return asked  # no member may be left: then the spares' state is what newcomers copy
        ceilings = roster.ceilings(change.joining)
        try:
            for worker in change.joining:  # some came before the founders were ready
                roster.check_alike(worker, roster.ready[worker])
            joined = WorkersJoined(workers=change.joining, max_samples=ceilings)
            return asked + mind.decide(joined)
        except UsageError as error:
            for worker in change.joining:
                mind.changes.forget(worker)
            return [Outgoing(worker, Refused(reason=str(error))) for worker in change.joining]

    def _on_checkpoint(self, worker: int, written: CheckpointWritten) -> list[Outgoing]:
        since = self.mind.member_since(worker)
        answer, refused = judge(worker, written, member_since=since, now=self._clock())
        if refused is not None:
            self._events.write(refused)
        return [Outgoing(worker, answer)]

    def _on_offer(self, worker: int, offer: StateOffered) -> list[Outgoing]:
        """A member has the state with which an epoch begins: the spares that are there fetch it."""
        mind = self.mind
        if not mind.is_member(worker):
            return []
        (address,) = mind.roster.addresses((worker,))
        message = FetchState(source=worker, address=address, step=offer.step)
        present = {*mind.present_spares}
        return [Outgoing(spare, message) for spare in offer.spares if spare in present]

    def ask_to_leave(self, worker: int) -> list[Outgoing]:
        """Somebody wants a worker to go. Raises UsageError where it cannot."""
        members = self.mind.members
        if worker not in members:
            names = ", ".join(str(member) for member in members) or "nobody yet"
            raise UsageError(f"worker {worker} does not take part in this job; who does: {names}")
        self.mind.roster.check_elastic(members, what="leave")
        return self._on_leaving(worker)

    def exclude(self, worker: int) -> list[Outgoing]:
        """Somebody wants a worker kept out until it is taken back. Raises UsageError otherwise."""
        mind = self.mind
        is_known = worker in mind.members or worker in mind.spares
        if not mind.is_under_way or not is_known:
            names = ", ".join(str(member) for member in mind.members) or "nobody yet"
            raise UsageError(f"worker {worker} does not take part in this job; who does: {names}")
        if worker in mind.kept_out:
            raise UsageError(f"worker {worker} is kept out already; `gangline take-back` ends that")
        if mind.members == (worker,):
            raise UsageError(
                f"worker {worker} is the only one that trains: nobody would go on without it"
            )
        mind.roster.check_elastic(mind.members, what="be kept out")
        return mind.keep_out(worker)

    def take_back(self, worker: int) -> list[Outgoing]:
        """Somebody wants a worker back that is out. Raises UsageError where it is not."""
        mind = self.mind
        if worker not in mind.spares or not mind.is_under_way:
            names = ", ".join(str(spare) for spare in sorted(mind.spares)) or "nobody"
            raise UsageError(f"worker {worker} cannot be taken back; who is out: {names}")
        return mind.ask_back(worker)

    def ask_everybody_to_leave(self) -> list[Outgoing]:
        """The job is to end: who has not been asked to leave is; also who waits to take part."""
        mind, outgoing = self.mind, []
        for one in list(mind.roster.workers.values()):
            if one.is_connected and one.state not in ("leaving", "gone"):
                outgoing += self._on_leaving(one.worker)
        return outgoing

    def ask_structure(self, request: ReplanRequest) -> list[Outgoing]:
        """Somebody wants another structure. Raises UsageError where it cannot be."""
        self.mind.replanning.ask(request, self.mind.view)
        return self._change()

    def _on_leaving(self, worker: int) -> list[Outgoing]:
        self.mind.roster.workers[worker].state = "leaving"
        self.mind.changes.want_out(worker)
        if self.mind.control is None or worker in self.mind.members:
            return []
        self.mind.dismissed.add(worker)
        return [Outgoing(worker, Dismissed())]

    def _on_goodbye(self, worker: int, goodbye: Goodbye) -> list[Outgoing]:
        mind, workers = self.mind, self.mind.roster.workers
        was_asked = worker in mind.dismissed or workers[worker].state == "leaving"
        workers[worker].state = "gone"
        self._home.leave(worker)
        mind.changes.forget(worker)
        members = mind.members
        newcomers = mind.changes.newcomers if mind.group > 0 else frozenset()
        if worker in {*members} - newcomers and not was_asked:
            if mind.verdict.hear_goodbye(worker, goodbye):
                self._journal.append(ScriptEnded(worker=worker, position=goodbye.position))
            mind.lookout.watch.lose_connection(worker, self._clock())
        if not all(workers[one].state == "gone" for one in {*members} - newcomers):
            return self._losses.look()
        if members and not mind.is_over:
            mind.end()
        late = sorted({*newcomers, *mind.changes.waiting, *mind.lookout.cut.waiting})
        has_trained = mind.roster.has_trained
        excluded = {} if mind.control is None else mind.control.oversight.exclusions
        spare = {*excluded} - {worker} - ({*members} - newcomers)
        mind.dismissed |= spare  # they did what they could: this is no failure of theirs
        dismissals = [Outgoing(one, Dismissed()) for one in sorted(spare)]
        return dismissals + [
            Outgoing(one, LEFT_BEHIND if has_trained(one) else OVER)
            for one in late
            if one not in spare
        ]

    def _on_finished(self, worker: int, group: int) -> list[Outgoing]:
        mind = self.mind
        if group == mind.group and mind.view is not None:
            # Its members have met, and there will be no step that says so.
            mind.changes.see_step(mind.view.number)
            mind.lookout.watch.has_stepped = True
        self._home.finish(worker, group)
        if mind.roster.whole is None:
            mind.recall()  # so that the spares end with the final state, too
        return self._release()

    def _release(self) -> list[Outgoing]:
        """Lets those go whose scripts are over, unless somebody who was put out may need them."""
        if not self._home.has_begun:
            return []
        mind = self.mind
        if mind.is_under_way and mind.roster.whole is None:
            if self._home.is_entering(mind.members, mind.group):
                return []  # the newest view has somebody who is back
            if any(mind.roster.has_trained(one) for one in mind.changes.waiting):
                return []
            now, members = self._clock(), mind.members
            for number, one in mind.roster.workers.items():
                is_back = one.is_connected or self._home.is_reconnecting(number, now)
                is_awaited = number not in members and self._home.is_awaited(number, now)
                if is_awaited and is_back and one.state == "lost":
                    return []
        return [Outgoing(one, Released()) for one in self._home.release()]

    # --- steps -----------------------------------------------------------------------------------

    def takes(self, bunch: Bunch) -> bool:
        """Whether the reports of many come to the same at once as one after the other."""
        return self._steps.takes(bunch)

    def report_steps(self, bunch: Bunch) -> list[Outgoing]:
        """Many workers report a step; with the effects of their single reports."""
        return self._steps.hear_many(bunch)
