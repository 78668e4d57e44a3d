# SPDX-License-Identifier: Apache-2.0
"""Looks for members that are lost: what the watch cannot tell by itself, the members are asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gangline.control.members.watch import MIN_PATIENCE_S, Watch
from gangline.coordinator.members.reach import CutWorkers, Inquiry
from gangline.protocol.messages import Probe

if TYPE_CHECKING:
    from gangline.coordinator.members.roster import Roster
    from gangline.protocol.messages import Probed


RETURN_S = 3.0
"""After a restart, how long members may take to come back before anybody is taken to be lost."""


class Loss(NamedTuple):
    """The group is broken: who is lost (perhaps nobody), and how it was noticed."""

    workers: tuple[int, ...]
    reason: str


class Question(NamedTuple):
    """What some workers are to be asked."""

    workers: tuple[int, ...]
    probe: Probe


class Lookout:
    """The watch over the present members, and the question that they were asked, if any."""

    def __init__(self, roster: Roster, now: float, *, patience_s: float = MIN_PATIENCE_S) -> None:
        self._roster = roster
        self._patience_s = patience_s
        self._inquiry: Inquiry | None = None
        self._num_probes = 0
        self._resumed_s: float | None = None
        self.watch = self.begin((), now)
        self.cut = CutWorkers()
        """Who was put out because it did not reach the others."""

    def begin(self, members: tuple[int, ...], now: float, *, has_stepped: bool = False) -> Watch:
        """A watch over members of whom nothing is known."""
        return Watch(members, now, has_stepped=has_stepped, patience_s=self._patience_s)

    def watch_over(self, watch: Watch, now: float) -> None:
        """There is another group. Who is not here now was not there when it began."""
        self.watch = watch
        self._inquiry = None
        for member in watch.members:
            if not self._roster.workers[member].is_connected:
                watch.lose_connection(member, now)

    def resume(self, watch: Watch, now: float) -> None:
        """The coordinator was started again, and its workers are on their way back."""
        self._resumed_s = now
        self.watch_over(watch, now)

    def look(self, now: float, *, may_retry: bool) -> Loss | Question | None:
        """What is to be done now, if anything.

        Where an exchange failed and nobody is missing, the same members may try again (once).
        """
        if self._is_awaiting_members(now):
            return None
        lost, reason = self.watch.find_lost(now) or (None, None)
        if lost or (reason is not None and may_retry):
            self._inquiry = None
            return Loss(lost or (), reason or "")
        if self._inquiry is not None:
            return self._conclude(self._inquiry, now) if self._inquiry.is_over(now) else None
        reason = reason or self.watch.find_stall(now)
        if reason is None:
            return None
        members = self.watch.members
        question = self.ask(members)
        self._inquiry = Inquiry(self._num_probes, members, now, reason=reason)
        return question

    def _is_awaiting_members(self, now: float) -> bool:
        """Whether a restart is so recent that who is not here may still come back."""
        if self._resumed_s is None:
            return False
        workers, ended = self._roster.workers, self._roster.ended
        is_all_here = all(workers[one].is_connected or one in ended for one in self.watch.members)
        if is_all_here or now - self._resumed_s > RETURN_S:
            self._resumed_s = None
        return self._resumed_s is not None

    def _conclude(self, inquiry: Inquiry, now: float) -> Loss | None:
        """All have said whom they reach: who is cut from the others is lost to them."""
        self._inquiry = None
        cut = inquiry.find_cut()
        for worker in cut:
            self.cut.add(worker, now)
        if cut:
            names = ", ".join(str(worker) for worker in sorted(cut))
            num_left = len(inquiry.members) - len(cut)
            reason = f"worker {names} cut from its peers, {num_left} reach each other"
            return Loss(cut, f"{reason} ({inquiry.reason})")
        if not self.watch.has_failed:
            return None  # much is on its way
        return Loss((), f"{inquiry.reason}; all reach each other")

    def ask(self, workers: tuple[int, ...]) -> Question:
        """Asks workers which of the members they reach."""
        self._num_probes += 1
        members = self.watch.members
        addresses = self._roster.addresses(members)
        return Question(
            workers, Probe(number=self._num_probes, workers=members, addresses=addresses)
        )

    def hear_answer(self, worker: int, probed: Probed) -> bool:
        """A worker says whom it reaches; whether it was cut off, and is no more."""
        if self._inquiry is not None and probed.number == self._inquiry.number:
            self._inquiry.answer(worker, probed.reached)
            return False
        has_healed = worker in self.cut and set(self.watch.members) <= set(probed.reached)
        if has_healed:
            self.cut.heal(worker)
        return has_healed
