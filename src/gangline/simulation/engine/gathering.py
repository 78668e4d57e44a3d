# SPDX-License-Identifier: Apache-2.0
"""How simulated workers without a group find another one.

A worker enters the newest group that it was told of with itself in it. When all of that group's members
have come, the furthest of those that were in the team before is the truth, and they go on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.protocol.messages import Failed
from gangline.simulation.course import Recovery
from gangline.simulation.engine.crew import Crew
from gangline.simulation.engine.rounds import Meeting
from gangline.simulation.reporting import regrouped

if TYPE_CHECKING:
    from gangline.simulation.engine.field import Field
    from gangline.simulation.engine.member import Member
    from gangline.simulation.engine.progress import Progress


class Gathering:
    """The groups that are being made."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self._meetings: dict[tuple[int, int], Meeting] = {}
        self._members: dict[int, tuple[int, ...]] = {}
        """Who was in each team's last group."""

    def enter(self, member: Member) -> None:
        """A worker joins the others of a new group, if it knows of one."""
        view = member.view
        if not member.is_able or member.crew is not None or view is None:
            return
        if view.group <= member.group:
            return
        key = (view.team, view.group)
        meeting = self._meetings.get(key) or Meeting(view, is_recovery=member.is_recalled)
        if member.worker not in meeting.members:
            return
        for other in self._meetings.values():
            other.present.discard(member.worker)
        member.team, member.group, member.asked = view.team, view.group, (-1, -1)
        self._meetings[key] = meeting
        meeting.present.add(member.worker)
        if meeting.is_complete:
            is_first = all(one.is_new for one in self._lives(meeting))
            wait_s = 0.0 if is_first else self._field.scenario.regroup_s
            self._field.later(wait_s, lambda: self._form(key, meeting))

    def _lives(self, meeting: Meeting) -> list[Member]:
        return [self._field.everybody[worker] for worker in meeting.view.members]

    def bury(self, dead: Member) -> None:
        """A worker is dead: those that meet it notice."""
        for key, meeting in list(self._meetings.items()):
            if dead.worker not in meeting.present:
                continue
            del self._meetings[key]
            for worker in sorted(meeting.present - {dead.worker}):
                member = self._field.everybody[worker]
                step = member.life.position.step
                member.say(Failed(group=key[1], step=step, error="a peer is gone"))

    def _form(self, key: tuple[int, int], meeting: Meeting) -> None:
        """All have come: they become alike, and go on."""
        field, view = self._field, meeting.view
        if self._meetings.get(key) is not meeting or not meeting.is_complete:
            return
        members = self._lives(meeting)
        awake_s = max(member.life.hung_until for member in members)
        if awake_s > field.now:
            field.clock.schedule(awake_s, lambda: self._form(key, meeting))
            return
        del self._meetings[key]
        is_first = view.number == 0 and all(member.is_new for member in members)
        truth = members[0].progress.copy() if is_first else self._find_truth(members, view.team)
        if truth is None:
            for member in members:  # the state of the team is lost, and other teams have gone on
                member.leave()
            return
        if not is_first:
            num_behind = sum(member.progress.position != truth.position for member in members)
            lives, step = [member.life for member in members], truth.position.step
            for event in regrouped(field.now, lives, view, step=step, num_behind=num_behind):
                field.sink(event)
        self._note_recovery(meeting, members)
        truth.team, field.progress_s = view.team, field.now
        is_one = view.whole is None
        field.position = truth.position if is_one else max(field.position, truth.position)
        crew = Crew(field, view, members, truth)
        for member in members:
            member.crew, member.is_new, member.life.lost_group_s = crew, False, None
        crew.attend(members[0])
        crew.go_on()

    def _find_truth(self, members: list[Member], team: int) -> Progress | None:
        """How far the furthest has come of those that have the state of this team, if there are any.

        All who were just made other teams have it; who comes from a team that was given up does not.
        """
        known = [
            one.progress for one in members if not one.is_new and one.progress.team in (team, -1)
        ]
        return max(known, key=lambda one: one.position).copy() if known else None

    def _note_recovery(self, meeting: Meeting, members: list[Member]) -> None:
        field, view = self._field, meeting.view
        gone = {*self._members.get(view.team, ())} - {*view.members}
        lost = tuple(one for one in self._members.get(view.team, ()) if one in gone)
        self._members[view.team] = view.members
        if meeting.is_recovery:
            stranded_s = [one.life.lost_group_s for one in members if not one.is_new]
            hit_s = [field.lives[one].struck_s or field.now for one in lost]
            since_s = min(hit_s or [at for at in stranded_s if at is not None], default=field.now)
            recovery = Recovery(view=view.number, lost=lost, took_s=field.now - since_s)
            field.recoveries.append(recovery)
