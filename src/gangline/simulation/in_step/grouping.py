# SPDX-License-Identifier: Apache-2.0
"""How simulated workers lose their group and find another one.

Whoever is waiting in an exchange notices at once that a peer died, whoever still computes when it comes
there. It tells the coordinator and waits for a view of a newer group with itself in it. When all of
that view's members have come, the furthest of them is the truth, and they go on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.simulation.course import Recovery
from gangline.simulation.in_step.rounds import Meeting
from gangline.simulation.reporting import adopted, regrouped

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.control import PublishView
    from gangline.simulation.in_step.coordinator import SimulatedCoordinator
    from gangline.simulation.in_step.rounds import Round
    from gangline.simulation.lives import Life
    from gangline.simulation.world import World
    from gangline.spec.view import View


class Grouping:
    """Breaks groups, and makes new ones."""

    def __init__(
        self,
        world: World,
        coordinator: SimulatedCoordinator,
        *,
        come_to_regroup: Callable[[Life], None],
        go_on: Callable[[], None],
    ) -> None:
        """`come_to_regroup` has a worker come to that place; `go_on` lets a new group train."""
        self._world = world
        self._coordinator = coordinator
        self._come_to_regroup = come_to_regroup
        self._go_on = go_on
        self._meetings: dict[int, Meeting] = {}
        self._is_recovering = False
        self._hit_s = 0.0
        self._lost: tuple[int, ...] = ()

    # --- losing a group --------------------------------------------------------------------------

    def break_round(self, broken: Round) -> None:
        """Somebody will never come: each of the others finds out when it is there."""
        if broken.is_broken or broken.is_over:
            return
        broken.is_broken = True
        for worker in broken.view.members:
            if broken.holds(worker):
                self._strand_when_ready(broken, self._world.lives[worker])

    def _strand_when_ready(self, broken: Round, life: Life) -> None:
        ready_s = max(self._world.now, broken.ready_of(life.worker), life.hung_until)
        self._world.clock.schedule(ready_s, lambda: self._strand(broken, life))

    def _strand(self, broken: Round, life: Life) -> None:
        if not life.is_alive or not broken.holds(life.worker):
            return
        if self._world.now < max(broken.ready_of(life.worker), life.hung_until):
            self._strand_when_ready(broken, life)  # something held it up meanwhile
            return
        broken.gone.add(life.worker)
        life.position = broken.after if life.worker in broken.ahead else broken.position
        self.strand(life)

    def strand(self, life: Life) -> None:
        """A worker's exchange failed: it says so, and looks for another group."""
        life.lost_group_s = self._world.now
        self._report_failure(life)
        self.seek(life)

    def _report_failure(self, life: Life) -> None:
        group = life.group

        def arrive() -> None:
            if life.is_connected:
                self._coordinator.fail(life.worker, group=group)

        self._world.later(self._world.latency_s(life), arrive)

    def bury(self, life: Life) -> None:
        """A worker is dead: those that are with it notice."""
        present = self._world.round
        if present is not None and present.holds(life.worker):
            present.lose(life.worker)
            self.break_round(present)
        for group, meeting in list(self._meetings.items()):
            if life.worker in meeting.present:
                del self._meetings[group]
                for worker in sorted(meeting.present - {life.worker}):
                    self._report_failure(self._world.lives[worker])

    # --- finding another -------------------------------------------------------------------------

    def seek(self, life: Life) -> None:
        """A worker without a group comes to the place where it waits for one."""
        self._come_to_regroup(life)
        self.enter(life)

    def enter(self, life: Life) -> None:
        """A worker joins the others of a new group, if it knows of one."""
        view = life.view
        is_able = life.is_alive and not life.is_hung(self._world.now)
        if not is_able or life.lost_group_s is None or view is None:
            return
        if view.group <= life.group or life.worker not in view.members:
            return
        life.group = view.group
        meeting = self._meetings.setdefault(view.group, Meeting(view))
        meeting.present.add(life.worker)
        if meeting.is_complete:
            self._world.later(self._world.scenario.regroup_s, lambda: self._form(meeting))

    def leave_together(self) -> None:
        """The agreed step has come from which on there is another group."""
        members = self._world.members
        self._world.round = None
        for life in members:
            if life.is_alive and life.lost_group_s is None:
                life.lost_group_s, life.position = self._world.now, self._world.position
        for life in members:
            if life.is_alive:
                self.seek(life)

    def receive(self, command: PublishView) -> None:
        """Those that can be reached learn of a view; if it mends a broken group, at once."""
        view, world = command.view, self._world
        for worker in view.members:
            if world.lives[worker].is_connected:
                world.lives[worker].view = view
        if command.is_recovery:
            self._note_lost(view)
            for group in [one for one in self._meetings if one < view.group]:
                del self._meetings[group]
            if world.round is not None:
                world.is_recalled = world.round.is_over
                self.break_round(world.round)
        for worker in view.members:
            self.enter(world.lives[worker])

    def _note_lost(self, view: View) -> None:
        world = self._world
        lost = tuple(one.worker for one in world.members if one.worker not in view.members)
        hit_s = min((world.lives[one].struck_s or world.now for one in lost), default=world.now)
        self._hit_s = min(hit_s, self._hit_s) if self._is_recovering else hit_s
        self._is_recovering, self._lost = True, lost

    def _form(self, meeting: Meeting) -> None:
        world, view = self._world, meeting.view
        if self._meetings.get(view.group) is not meeting:
            return
        lives = [world.lives[worker] for worker in view.members]
        awake_s = max(life.hung_until for life in lives)
        if awake_s > world.now:
            world.clock.schedule(awake_s, lambda: self._form(meeting))
            return
        truth = max(life.position for life in lives)
        num_behind = sum(life.position != truth for life in lives)
        for life in lives:
            event = regrouped(world.now, life, view, step=truth.step, num_behind=num_behind)
            world.sink(event)
            life.lost_group_s = None
        self._meetings = {g: m for g, m in self._meetings.items() if g > view.group}
        if self._is_recovering:
            took_s = world.now - self._hit_s
            world.recoveries.append(Recovery(view=view.number, lost=self._lost, took_s=took_s))
            self._is_recovering = False
        world.view, world.position, world.progress_s = view, truth, world.now
        world.sink(adopted(world.now, view, step=truth.step))
        self._go_on()
