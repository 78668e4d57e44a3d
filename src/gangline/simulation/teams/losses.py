# SPDX-License-Identifier: Apache-2.0
"""What befalls the members of a simulated team, and how those that are left go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.control import WorkersLost
from gangline.simulation.course import Recovery
from gangline.simulation.reporting import regrouped
from gangline.simulation.strikes import Strikes

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.simulation.lives import Life
    from gangline.simulation.teams.federation import Federation
    from gangline.simulation.teams.team import Team
    from gangline.spec.faults import FaultPlan


class Losses:
    """Carries out a team's part of a fault plan, and makes a new group where a member died."""

    def __init__(
        self, team: Team, federation: Federation, *, plan: FaultPlan, go_on: Callable[[], None]
    ) -> None:
        """`go_on` is called when the members that are left have found each other."""
        self.strikes = Strikes(team.world, plan, observer=self)
        self.is_regrouping = False
        """Whether the members that are left are looking for each other."""
        self.turn = 0
        """Counts the losses: what was to come before one does not come any more."""
        self._team = team
        self._world = team.world
        self._federation = federation
        self._go_on = go_on

    def on_hit(self, life: Life) -> None:
        """Something is about to happen to a member."""

    def on_kill(self, life: Life) -> None:
        """A member is dead: those that are left go on without it, if there are any."""
        team, world = self._team, self._world
        step = world.round
        self.turn += 1
        if step is not None:
            step.is_broken = True
        alive = [one for one in team.lives if one.is_alive]
        if not alive or team.is_lost:
            return
        ready_s = [step.ready_of(one.worker) for one in alive] if step is not None else []
        notice_s = max([world.now, *ready_s, *(one.hung_until for one in alive)])
        for one in alive:
            one.lost_group_s = notice_s
        self.is_regrouping = True
        after_s = notice_s - world.now + 2 * team.latency_s + world.scenario.regroup_s
        world.later(after_s, self._regroup)

    def on_wake(self, life: Life) -> None:
        """A member that hung goes on: its step was delayed, and that is all."""

    def on_line(self, life: Life) -> None:
        """A member's line went down or came up: nothing here waits for it."""

    def _regroup(self) -> None:
        """Those that are left have found each other; who is killed now is gone with the next."""
        world, team = self._world, self._team
        dead = tuple(life.worker for life in team.lives if not life.is_alive)
        if team.is_lost or not self.is_regrouping or len(dead) == len(team.members):
            return
        awake_s = max(life.hung_until for life in team.lives if life.is_alive)
        if awake_s > world.now:
            world.clock.schedule(awake_s, self._regroup)
            return
        self.is_regrouping, world.round = False, None
        for life in team.lives:
            if life.is_alive:
                self.strikes.come_to(life, "regroup", step=world.position.step)
        if not self.is_regrouping:
            self._form(dead)

    def _form(self, dead: tuple[int, ...]) -> None:
        world, team = self._world, self._team
        team.members = tuple(one for one in team.members if one not in dead)
        team.tell(WorkersLost(workers=dead, reason="a peer is gone"))
        view = team.state.view
        assert view is not None
        took_s = world.now - min(world.lives[one].struck_s for one in dead)
        world.recoveries.append(Recovery(view=view.number, lost=dead, took_s=took_s))
        for life in team.lives:
            event = regrouped(world.now, life, view, step=world.position.step, num_behind=0)
            world.sink(msgspec.structs.replace(event, team=team.number))
            life.lost_group_s = None
        team.adopt()
        self._federation.fail_stale(team)
        self._federation.settle(f"the members of team {team.number} changed")
        self._go_on()
