# SPDX-License-Identifier: Apache-2.0
"""Who is lost to a job, and what becomes of the others: they go on, begin again, or end by an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.control import WorkersLost
from gangline.coordinator.members.lookout import Loss, Question
from gangline.coordinator.outgoing import LEFT_BEHIND, Outgoing
from gangline.protocol.messages import Dismissed, Refused, founders_group
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.coordinator.members.homecoming import Homecoming
    from gangline.coordinator.mind import Mind
    from gangline.protocol.messages import Failed, Probed, Stopped

MAX_GATHERINGS = 5
"""So often founders may fail to reach each other while none of them is lost."""
ABSENT_S = 30.0
"""So long all members may be away before the spares go on without them."""


class Losses:
    """Hears that exchanges have failed, and looks who is missing."""

    def __init__(self, mind: Mind, home: Homecoming, clock: Callable[[], float]) -> None:
        self._mind = mind
        self._home = home
        self._clock = clock
        self._absent_since_s: float | None = None
        """Since when no member has been connected."""

    def look(self) -> list[Outgoing]:
        """Looks whether somebody is lost, and has that decided."""
        mind = self._mind
        if mind.is_over:
            return []
        stopped = mind.verdict.judge(mind.participants, self._clock())
        if stopped is not None:
            return self._stop(stopped)
        gone = self._find_all_gone()
        if gone is not None:
            return self._lose(gone)
        has_tried = mind.is_recovered and not mind.lookout.watch.has_stepped
        may_retry = mind.control is not None and not has_tried
        seen = mind.lookout.look(self._clock(), may_retry=may_retry)
        if seen is None:
            return []
        if isinstance(seen, Question):
            return questions(seen)
        waiting = {*mind.lookout.watch.waiting} - mind.changes.newcomers
        stopped = mind.verdict.judge_waiting(seen.workers, waiting)
        if stopped is not None and not mind.lookout.watch.has_failed:
            return self._stop(stopped)
        if seen.workers and {*seen.workers} <= {*mind.verdict.ended} and not waiting:
            return []  # their scripts have ended, and so will those of the others
        return self._lose(seen)

    def _lose(self, loss: Loss) -> list[Outgoing]:
        mind = self._mind
        self._home.lose(loss.workers, self._clock())
        for worker in loss.workers:
            mind.roster.workers[worker].state = "lost"
        if mind.control is not None:
            return mind.decide(WorkersLost(workers=loss.workers, reason=loss.reason))
        return self._found_again(loss.workers, loss.reason)

    def _find_all_gone(self) -> Loss | None:
        """No member is left who could say that another one is lost, but spares are, who can go on."""
        mind, now = self._mind, self._clock()
        if mind.is_connected or not mind.present_spares:
            self._absent_since_s = None
            return None
        if mind.has_all_ended:
            return Loss(mind.members, "the processes of all members have ended")
        if self._absent_since_s is None:
            self._absent_since_s = now
        absent_s = now - self._absent_since_s
        if (
            absent_s < ABSENT_S
        ):  # spares have an old state: members that may come back are worth more
            return None
        return Loss(mind.members, f"no member has been connected for {absent_s:.0f} s")

    def _stop(self, stopped: Stopped) -> list[Outgoing]:
        """The workers' loops differ: the job ends with an error for everybody."""
        self._mind.say(Decision(t=self._clock(), what="stop", reason=stopped.reason, numbers={}))
        return self._mind.stop(stopped)

    def _found_again(self, lost: tuple[int, ...], reason: str) -> list[Outgoing]:
        """A founder is lost before there is a view: the others begin without it."""
        mind = self._mind
        founded, members = mind.roster.founded, mind.participants
        assert founded is not None
        if not mind.roster.is_elastic(members):
            return []  # they notice it themselves, and end
        if not lost and founded.attempt + 1 >= MAX_GATHERINGS:
            refusal = Refused(reason=f"the founders do not get in touch with each other: {reason}")
            return [Outgoing(member, refusal) for member in members]
        mind.roster.found_again(lost)
        left = len(mind.participants)
        reason = f"{reason}; {left} of {len(members)} founders begin"
        numbers = {"lost": float(len(lost)), "founders": float(left)}
        mind.say(Decision(t=self._clock(), what="gather_again", reason=reason, numbers=numbers))
        return mind.gather()

    def hear_failure(self, worker: int, failed: Failed) -> list[Outgoing]:
        """A worker says that an exchange has failed; or, having been put out, that it is back."""
        mind = self._mind
        view = mind.view
        founded = mind.roster.founded
        if mind.stopped is not None:
            return [Outgoing(worker, mind.stopped)]
        if view is not None and worker in mind.dismissed:
            return [Outgoing(worker, Dismissed())]
        if view is not None and worker not in view.members and failed.group >= 0:
            return self._take_back(worker)
        if view is not None:
            present = view.group
        else:
            present = founders_group(0 if founded is None else founded.attempt)
        if failed.group == present and worker not in mind.changes.newcomers:
            mind.verdict.hear_failure(worker, failed, self._clock())
        # Who cannot see others come and go ends by itself, unless the loops differ.
        if failed.group == present and mind.roster.is_elastic(mind.participants):
            mind.lookout.watch.report_failure(worker, failed.error, self._clock())
        return self.look()

    def _take_back(self, worker: int) -> list[Outgoing]:
        """A worker that was put out is back."""
        mind = self._mind
        if mind.is_over:
            return [Outgoing(worker, LEFT_BEHIND)]
        if worker in mind.spares:
            return []  # it was put out for being slow, and shows when it is not
        if worker in mind.lookout.cut:
            mind.lookout.cut.want_in(worker)
        else:
            mind.changes.want_in(worker)
        return []

    def hear_answer(self, worker: int, probed: Probed) -> list[Outgoing]:
        """A worker says whom of the others it reaches."""
        if self._mind.lookout.hear_answer(worker, probed):
            self._mind.changes.want_in(worker)
        return self.look()


def questions(question: Question) -> list[Outgoing]:
    """What those are told that are asked."""
    return [Outgoing(worker, question.probe) for worker in question.workers]
