# SPDX-License-Identifier: Apache-2.0
"""How the members of a simulated group lose it.

Whoever is waiting in an exchange notices at once that a peer died, whoever still computes when it comes
there. It tells the coordinator, and waits for a view of a newer group with itself in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.protocol.messages import Failed

if TYPE_CHECKING:
    from gangline.simulation.engine.crew import Crew
    from gangline.simulation.engine.field import Field
    from gangline.simulation.engine.member import Member
    from gangline.simulation.engine.rounds import Round


class Parting:
    """Lets the members of one group go."""

    def __init__(self, crew: Crew, field: Field) -> None:
        self._crew = crew
        self._field = field

    def bury(self, dead: Member) -> None:
        """A member is dead: who waits for it in an exchange notices at once."""
        self._crew.odd[self._crew.ranks[dead.worker]] = dead
        if self._crew.round is not None and self._crew.round.holds(dead.worker):
            self._crew.round.lose(dead.worker)
            self.end_round()

    def recall(self, member: Member) -> None:
        """A member was told that this group is no more."""
        if self._crew.round is not None and not self._crew.round.is_over:
            self.end_round()
        else:
            self._crew.is_broken = True
            self.strand(member)

    def notice(self, member: Member) -> None:
        """A member is still here, and has heard that others went on: it would exchange with nobody."""
        view, crew = member.view, self._crew
        is_left = view is not None and view.group > member.group and member.crew is crew
        if is_left and crew.round is None:
            self.strand(member)

    def fail(self) -> None:
        """Somebody is missing where all members are needed: the others notice."""
        self._crew.is_broken = True
        for member in self._crew.members:
            if member.is_able and member.crew is self._crew:
                self.strand(member)

    def end_round(self) -> None:
        """Somebody will never come: each of the others finds out when it is there."""
        broken = self._crew.round
        if broken is None or broken.is_broken:
            return
        broken.is_broken = self._crew.is_broken = True
        for member in self._crew.members:
            if broken.holds(member.worker):
                self._strand_when_ready(broken, member)

    def _strand_when_ready(self, broken: Round, member: Member) -> None:
        ready_s = max(self._field.now, broken.ready_of(member.worker), member.life.hung_until)
        self._field.clock.schedule(ready_s, lambda: self._strand(broken, member))

    def _strand(self, broken: Round, member: Member) -> None:
        is_here = member.life.is_alive and member.crew is self._crew
        if not is_here or not broken.holds(member.worker):
            return
        ready_s = max(broken.ready_of(member.worker), member.life.hung_until)
        if self._field.now < ready_s:
            self._strand_when_ready(broken, member)  # something held it up meanwhile
            return
        broken.gone.add(member.worker)
        self.strand(member)

    def strand(self, member: Member) -> None:
        """A member's exchange failed: it says so, and looks for another group."""
        has_moved = member.group < 0
        self.let_go(member)
        if not has_moved:
            step = member.life.position.step
            member.say(Failed(group=member.group, step=step, error="a peer is gone"))
        self._field.strikes.come_to(member.life, "regroup", step=member.life.position.step)
        self._field.gathering.enter(member)

    def let_go(self, member: Member) -> None:
        """A member is in this group no more."""
        member.crew, member.progress = None, self._crew.progress.copy()
        broken = self._crew.round
        if broken is not None and member.worker in broken.ahead:
            member.progress.position = broken.after
            member.progress.steps += 1
            member.progress.pulled = broken.pulled or member.progress.pulled
        member.life.position = member.progress.position
        member.life.lost_group_s = self._field.now

    def leave_together(self) -> None:
        """The agreed step has come from which on there is another group."""
        crew = self._crew
        crew.is_broken = True
        left = [one for one in crew.members if one.life.is_alive and one.crew is crew]
        for member in left:
            self.let_go(member)
        for member in left:
            self._field.strikes.come_to(member.life, "regroup", step=member.life.position.step)
            self._field.gathering.enter(member)
