# SPDX-License-Identifier: Apache-2.0
"""What the coordinator does with each message: no sockets and no threads here.

Every method returns the messages that shall be sent because of it; the server delivers them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.control import (
    PublishView,
    SpareMeasured,
    StepMeasured,
    WorkersJoined,
    WorkersLeft,
    WorkersLost,
)
from gangline.coordinator.members.lookout import Question
from gangline.coordinator.mind import Mind
from gangline.coordinator.mind import Outgoing as Outgoing
from gangline.coordinator.records import Ended, ScriptEnded
from gangline.coordinator.reports.checkpoints import judge
from gangline.coordinator.sanity import check_report
from gangline.protocol.messages import (
    CheckpointWritten,
    Dismissed,
    Exhausted,
    Failed,
    Finished,
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
    Released,
    Shown,
    Stopped,
    founders_group,
)
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from gangline.coordinator.reports.bunch import Bunch
    from gangline.protocol.lifeline import ProcessEnded
    from gangline.protocol.status import ReplanRequest


MAX_GATHERINGS = 5
"""So often founders may fail to reach each other while none of them is lost."""

OVER = Refused(reason="the job is over, its workers have ended", is_left_behind=True)
LEFT_BEHIND = Refused(
    reason=(
        "the job has ended without this worker, which did not answer for too long: its parameters "
        "are not those that were trained. Take those of the others, or of the last checkpoint"
    ),
    is_left_behind=True,
)


class Hub(Mind):
    """What the coordinator does with each message; what it knows and decides is its mind's."""

    # --- connections -----------------------------------------------------------------------------

    def admit(self, hello: Hello) -> int:
        """Checks and numbers a worker that another hub will look after."""
        self._roster.check(hello, run=self._run, members=self._members)
        return self._roster.greet(hello)[0]

    def connect(self, hello: Hello) -> tuple[int, list[Outgoing]]:
        """A worker said hello: its number, and what to tell whom.

        Raises UsageError, for the worker to read, if it does not belong here.
        """
        self._roster.check(hello, run=self._run, members=self._members)
        is_known = hello.worker in self._dismissed or self._roster.has_trained(hello.worker)
        if self._is_over and not is_known:
            raise UsageError(OVER.reason)
        worker, is_new = self._roster.greet(hello)
        if is_new:
            self._dismissed.discard(worker)
            self._lookout.cut.forget(worker)
        self._lookout.watch.hear(worker, self._clock())
        return worker, self._gather() if self._roster.found() else self._catch_up(worker)

    def disconnect(self, worker: int) -> None:
        """A worker's connection is gone; the worker itself may be well."""
        self._changes.forget(worker)
        self._home.leave(worker)
        self._lookout.watch.lose_connection(worker, self._clock())
        self._roster.lose_connection(worker)
        self._home.hang_up(worker, self._clock())

    def see_busy(self, worker: int) -> None:
        """A worker computes, and cannot say so itself."""
        self._lookout.watch.see_busy(worker, self._clock())

    def note_ended(self, ended: ProcessEnded) -> list[Outgoing]:
        """Whoever starts the workers says that one's process is no more: nobody waits for it.

        Unless somebody takes its place: with another number, as the founder that was expected.
        """
        if self._roster.founded is not None:
            if ended.has_failed:
                self._roster.ended.add(ended.worker)
                self.disconnect(ended.worker)
            return self._look()
        self._roster.lose_connection(ended.worker)
        self._roster.expected -= not ended.is_replaced
        return self._gather() if self._roster.found() else []

    def tick(self) -> list[Outgoing]:
        """Time has passed: looks whether somebody is missing, and grants what was asked for."""
        return self._look() + self._change() + self._release()

    def _gather(self) -> list[Outgoing]:
        """The founders are there, and shall shake hands."""
        now = self._clock()
        self._lookout.watch_over(self._lookout.begin(self._members, now), now)
        return [Outgoing(one.worker, one) for one in self._roster.gather()]

    def _catch_up(self, worker: int) -> list[Outgoing]:
        """What a worker that comes late, or comes back, must know."""
        if self._roster.founded is None:
            return []
        view = self._view
        missed: list[FromCoordinator] = [self._roster.gathered(worker, view)]
        is_dismissed = worker in self._dismissed
        if self._stopped is not None:
            missed.append(self._stopped)
        elif self._is_over and not is_dismissed:
            missed.append(LEFT_BEHIND)
        elif view is not None:
            was_in = worker in view.members or is_dismissed or self._roster.has_trained(worker)
            command = PublishView(view=view, is_recovery=self._is_recovered)
            missed += [self._published(command)] if was_in else []
            missed += [Dismissed()] if is_dismissed else []
        return [Outgoing(worker, message) for message in missed]

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
            case Shown(slowdown=slowdown):
                shown = SpareMeasured(worker=worker, slowdown=slowdown)
                return [] if self._control is None or self._is_over else self._decide(shown)
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
            case Finished(group=group):
                return self._on_finished(worker, group)
            case Goodbye():
                return self._on_goodbye(worker, message)
            case Hello():
                raise UsageError(f"worker {worker} said hello twice on one connection")
            case _:
                raise UsageError(f"worker {worker} speaks for a team, and this job has none")

    def _on_ready(self, worker: int, ready: Ready) -> list[Outgoing]:
        if self._is_over and not self._is_member(worker):
            return [Outgoing(worker, LEFT_BEHIND if self._roster.has_trained(worker) else OVER)]
        try:
            self._roster.set_ready(worker, ready)
        except UsageError as error:
            return [Outgoing(worker, Refused(reason=str(error)))]
        if self._control is not None and self._is_member(worker):
            return []  # its line was down, and it says everything again
        self._roster.workers[worker].state = "ready"
        if self._control is not None or not self._is_member(worker):
            self._changes.want_in(worker)
        if self._control is not None or not self._roster.can_begin or self._roster.is_relaxed:
            return []
        try:
            return self._begin(self._members)
        except UsageError as error:
            return [Outgoing(member, Refused(reason=str(error))) for member in self._roster.ready]

    def _change(self) -> list[Outgoing]:
        """Grants the wishes of those that want in or out, when the time is right."""
        if self._control is None or self._is_over:
            return []
        due = self._lookout.cut.due(self._clock())
        asked = _asked(self._lookout.ask(due)) if due else []
        change = self._changes.next(self._control.members)
        wish = self._replanning.take(is_settled=self._changes.is_settled and change is None)
        if wish is not None:
            return asked + self._decide(wish)
        if change is None or change.last in self._dismissed:
            return asked
        if change.last is not None:
            if self._roster.newcomers(self._control.members, self._dismissed):
                return asked  # they need somebody whose state they copy
            self._dismissed.add(change.last)
            return [*asked, Outgoing(change.last, Dismissed())]
        if change.leaving:
            return asked + self._decide(WorkersLeft(workers=change.leaving))
        ceilings = self._roster.ceilings(change.joining)
        try:
            for worker in change.joining:  # some came before the founders were ready
                self._roster.check_alike(worker, self._roster.ready[worker])
            joined = WorkersJoined(workers=change.joining, max_samples=ceilings)
            return asked + self._decide(joined)
        except UsageError as error:
            for worker in change.joining:
                self._changes.forget(worker)
            return [Outgoing(worker, Refused(reason=str(error))) for worker in change.joining]

    def _on_failed(self, worker: int, failed: Failed) -> list[Outgoing]:
        view = self._view
        founded = self._roster.founded
        if self._stopped is not None:
            return [Outgoing(worker, self._stopped)]
        if view is not None and worker in self._dismissed:
            return [Outgoing(worker, Dismissed())]
        if view is not None and worker not in view.members and failed.group >= 0:
            return self._take_back(worker)
        if view is not None:
            present = view.group
        else:
            present = founders_group(0 if founded is None else founded.attempt)
        if failed.group == present and worker not in self._changes.newcomers:
            self._verdict.hear_failure(worker, failed, self._clock())
        # Who cannot see others come and go ends by itself, unless the loops differ.
        if failed.group == present and self._roster.is_elastic(self._members):
            self._lookout.watch.report_failure(worker, failed.error, self._clock())
        return self._look()

    def _take_back(self, worker: int) -> list[Outgoing]:
        """A worker that was put out is back."""
        if self._is_over:
            return [Outgoing(worker, LEFT_BEHIND)]
        if worker in self._spares:
            return []  # it was put out for being slow, and shows when it is not
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

    def ask_structure(self, request: ReplanRequest) -> list[Outgoing]:
        """Somebody wants another structure. Raises UsageError where it cannot be."""
        self._replanning.ask(request, self._view)
        return self._change()

    def _on_leaving(self, worker: int) -> list[Outgoing]:
        self._roster.workers[worker].state = "leaving"
        self._changes.want_out(worker)
        if self._control is None or worker in self._control.members:
            return []
        self._dismissed.add(worker)
        return [Outgoing(worker, Dismissed())]

    def _on_goodbye(self, worker: int, goodbye: Goodbye) -> list[Outgoing]:
        workers = self._roster.workers
        was_asked = worker in self._dismissed or workers[worker].state == "leaving"
        workers[worker].state = "gone"
        self._home.leave(worker)
        self._changes.forget(worker)
        members = () if self._control is None else self._control.members
        newcomers = self._changes.newcomers if self._group > 0 else frozenset()
        if worker in {*members} - newcomers and not was_asked:
            if self._verdict.hear_goodbye(worker, goodbye):
                self._journal.append(ScriptEnded(worker=worker, position=goodbye.position))
            self._lookout.watch.lose_connection(worker, self._clock())
        if not all(workers[one].state == "gone" for one in {*members} - newcomers):
            return self._look()
        if members and not self._is_over:
            self._is_over = True
            self._journal.append(Ended())
        late = sorted({*newcomers, *self._changes.waiting, *self._lookout.cut.waiting})
        has_trained = self._roster.has_trained
        excluded = {} if self._control is None else self._control.oversight.exclusions
        spare = {*excluded} - {worker} - ({*members} - newcomers)
        self._dismissed |= spare  # they did what they could: this is no failure of theirs
        dismissals = [Outgoing(one, Dismissed()) for one in sorted(spare)]
        return dismissals + [
            Outgoing(one, LEFT_BEHIND if has_trained(one) else OVER)
            for one in late
            if one not in spare
        ]

    def _on_finished(self, worker: int, group: int) -> list[Outgoing]:
        if group == self._group and self._view is not None:
            # Its members have met, and there will be no step that says so.
            self._changes.see_step(self._view.number)
            self._lookout.watch.has_stepped = True
        self._home.finish(worker, group)
        return self._release()

    def _release(self) -> list[Outgoing]:
        """Lets those go whose scripts are over, unless somebody who was put out may need them."""
        if not self._home.has_begun:
            return []
        if self._control is not None and not self._is_over and self._roster.whole is None:
            if self._home.is_entering(self._control.members, self._group):
                return []  # the newest view has somebody who is back
            if any(self._roster.has_trained(one) for one in self._changes.waiting):
                return []
            now, members = self._clock(), self._control.members
            for number, one in self._roster.workers.items():
                is_back = one.is_connected or self._home.is_reconnecting(number, now)
                is_awaited = number not in members and self._home.is_awaited(number, now)
                if is_awaited and is_back and one.state == "lost":
                    return []
        return [Outgoing(one, Released()) for one in self._home.release()]

    # --- who is lost -----------------------------------------------------------------------------

    def _look(self) -> list[Outgoing]:
        """Looks whether somebody is lost, and has that decided."""
        if self._is_over:
            return []
        stopped = self._verdict.judge(self._members, self._clock())
        if stopped is not None:
            return self._stop(stopped)
        has_tried = self._is_recovered and not self._lookout.watch.has_stepped
        may_retry = self._control is not None and not has_tried
        seen = self._lookout.look(self._clock(), may_retry=may_retry)
        if seen is None:
            return []
        if isinstance(seen, Question):
            return _asked(seen)
        waiting = {*self._lookout.watch.waiting} - self._changes.newcomers
        stopped = self._verdict.judge_waiting(seen.workers, waiting)
        if stopped is not None and not self._lookout.watch.has_failed:
            return self._stop(stopped)
        if seen.workers and {*seen.workers} <= {*self._verdict.ended} and not waiting:
            return []  # their scripts have ended, and so will those of the others
        self._home.lose(seen.workers, self._clock())
        for worker in seen.workers:
            self._roster.workers[worker].state = "lost"
        if self._control is not None:
            return self._decide(WorkersLost(workers=seen.workers, reason=seen.reason))
        return self._found_again(seen.workers, seen.reason)

    def _stop(self, stopped: Stopped) -> list[Outgoing]:
        """The workers' loops differ: the job ends with an error for everybody."""
        self._say(Decision(t=self._clock(), what="stop", reason=stopped.reason, numbers={}))
        return self.stop(stopped)

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
        view, total = self._view, 0 if self._control is None else int(self._control.shares.sum())
        check_report(report, newest=-1 if view is None else view.number, total=total)
        if not self._tally.believes(worker, report.step):
            return self._doubt(worker, report.step)
        self._changes.see_step(report.view)
        self._roster.workers.note(
            worker, step=report.step, samples=report.samples, compute_s=report.compute_s
        )
        self._lookout.watch.report_step(
            self._clock(),
            step=report.step,
            is_own=self._changes.is_settled,
            exchange_s=report.exchange_s,
        )
        return self._note_steps(self._tally.add(worker, report, self._clock()))

    def takes(self, bunch: Bunch) -> bool:
        """Whether the reports of many come to the same at once as one after the other."""
        view, control = self._view, self._control
        if view is None or control is None or bunch.given.view > view.number:
            return False
        is_newest = bunch.given.view == view.number
        is_sane = not is_newest or int(bunch.samples.max(initial=0)) <= int(control.shares.sum())
        return is_sane and self._tally.takes(bunch)

    def report_steps(self, bunch: Bunch) -> list[Outgoing]:
        """Many workers report a step; with the effects of their single reports."""
        now, given = self._clock(), bunch.given
        self._lookout.watch.hear_many(bunch.workers, now)
        self._changes.see_step(given.view)
        self._roster.workers.note_many(bunch)
        self._lookout.watch.report_step(
            now,
            step=given.step,
            is_own=self._changes.is_settled,
            exchange_s=float(bunch.exchange_s.min()),
        )
        return self._note_steps(self._tally.add_many(bunch, now))

    def _note_steps(self, complete: list[StepMeasured]) -> list[Outgoing]:
        outgoing = []
        for measured in complete:
            self._step = measured.step
            outgoing += self._decide(measured)
        return outgoing

    def _doubt(self, worker: int, step: int) -> list[Outgoing]:
        if self._tally.must_tell(worker):
            reason = f"worker {worker} claims step {step}, where no other member is near"
            numbers = {"worker": float(worker), "step": float(step)}
            self._say(Decision(t=self._clock(), what="doubt", reason=reason, numbers=numbers))
        return []

    def _on_metrics(self, worker: int, metrics: Metrics) -> list[Outgoing]:
        self._metrics[worker] = metrics
        self._has_new_metrics = True  # they are told before whatever is decided next
        return []


def _asked(question: Question) -> list[Outgoing]:
    return [Outgoing(worker, question.probe) for worker in question.workers]
