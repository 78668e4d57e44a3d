# SPDX-License-Identifier: Apache-2.0
"""Puts a simulated run together: workers, coordinator, faults, and the time in which they act."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gangline.simulation.clock import VirtualClock
from gangline.simulation.in_step.coordinator import TICK_S, SimulatedCoordinator
from gangline.simulation.in_step.grouping import Grouping
from gangline.simulation.in_step.stepping import Stepping
from gangline.simulation.lives import Life
from gangline.simulation.reporting import adopted, ended, respawned, started
from gangline.simulation.strikes import Strikes
from gangline.simulation.views import ViewSchedule
from gangline.simulation.world import World
from gangline.simulation.yardstick import Yardstick

if TYPE_CHECKING:
    from gangline.control import ControlOptions, PublishView
    from gangline.simulation.course import Course
    from gangline.simulation.scenario import Scenario
    from gangline.simulation.world import Sink
    from gangline.simulation.yardstick import SimulatedStep
    from gangline.spec.view import View

VIEW_WAIT_S = 600.0
"""How long workers wait for a view that lets them go on, before they give up."""

SHOW_S = 1.0
"""How often a spare shows how fast it is."""


class Simulation:
    """The counterpart of coordinator and workers."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        options: ControlOptions,
        steps: int,
        seed: int,
        sink: Sink,
        course: Course,
    ) -> None:
        self.views: list[View] = []
        self.problem: str | None = None
        founders = range(len(scenario.worker_nodes))
        lives = [Life(one, row=one, faults=course.faults.of(one)) for one in founders]
        self.world = World(scenario, lives, clock=VirtualClock(), sink=sink)
        self._options = options
        self._steps = steps
        self._respawns_left = course.respawns
        self._num_coming = 0
        self._is_ticking = False
        self._shown_s = 0.0
        self._schedule = ViewSchedule(lag_steps=scenario.view_lag_steps)
        self._yardstick = Yardstick(scenario, options=options, seed=seed)
        self._coordinator = SimulatedCoordinator(
            options, clock=self.world.clock, publish=self._publish, say=sink
        )
        self.strikes = Strikes(self.world, course.faults, observer=self)
        self._grouping = Grouping(
            self.world,
            self._coordinator,
            come_to_regroup=self._come_to_regroup,
            go_on=self._begin_group,
        )
        self._stepping = Stepping(
            self.world,
            self._coordinator,
            self._yardstick,
            views=self._schedule,
            rng=np.random.default_rng((seed, 1)),
            finish=self._finish,
        )
        self._stepping.attach(self.strikes, self._grouping, steps=steps, samples=course.samples)

    def run(self) -> None:
        """Runs to the end."""
        world = self.world
        world.sink(started(world.now, nodes=world.scenario.worker_nodes))
        self._coordinator.tell(world.scenario.founders(global_batch=self._options.global_batch))
        world.clock.schedule(world.now, self._begin_group)
        world.clock.run()
        world.sink(ended(world.now, steps=self._steps, problem=self.problem))

    @property
    def history(self) -> tuple[SimulatedStep, ...]:
        """The steps that were done and count."""
        return self._yardstick.history(self.world.position.step)

    @property
    def link_bytes(self) -> float:
        """What was sent over limited links."""
        return self._yardstick.network.crossed_bytes

    # --- views -----------------------------------------------------------------------------------

    def _publish(self, command: PublishView) -> None:
        view, world = command.view, self.world
        self.views.append(view)
        if world.view is None:
            self._found(view)
            return
        if command.is_recovery:
            self._schedule.clear()
        else:
            unaware = {one for one in view.members if not world.lives[one].is_connected}
            last_done = world.position.step - 1
            self._schedule.publish(view, last_done=last_done, unaware=unaware)
        self._grouping.receive(command)
        if view.group != world.view.group:
            self._attend()

    def _found(self, view: View) -> None:
        world = self.world
        world.view = view
        for life in world.members:
            life.view, life.group = view, view.group
        world.sink(adopted(world.now, view, step=0))

    def _begin_group(self) -> None:
        self._schedule.clear()
        self._yardstick.enter(self.world.members)
        self._stepping.go_on()

    # --- what befalls the workers ----------------------------------------------------------------

    def on_hit(self, life: Life) -> None:
        """Something is about to happen to a worker, which was well until now."""
        if life.is_connected:
            self._coordinator.hear([life.worker])
        self._attend()

    def on_kill(self, life: Life) -> None:
        """A worker is dead: its line goes down, and it may be replaced."""
        self._grouping.bury(life)
        self.world.later(
            self.world.latency_s(life), lambda: self._coordinator.disconnect(life.worker)
        )
        if self._respawns_left:
            self._respawns_left -= 1
            self._num_coming += 1
            self.world.later(self.world.scenario.respawn_s, lambda: self._respawn(life))

    def on_wake(self, life: Life) -> None:
        """A worker that hung goes on."""
        if life.is_connected:
            self._coordinator.hear([life.worker])
            self._coordinator.hear_reports(life.worker)
        self._grouping.enter(life)

    def on_line(self, life: Life) -> None:
        """A worker's line to the coordinator went down, or came up again."""
        if not life.is_connected:
            self._coordinator.disconnect(life.worker)
            return
        self._coordinator.connect(life.worker)
        view = self._coordinator.state.view
        if view is not None and life.worker in view.members:
            life.view = view
        self._schedule.learn(life.worker, last_done=self.world.position.step - 1)
        self._coordinator.hear_reports(life.worker)
        if life.lost_group_s is not None:  # what it could not say, it says now
            self._coordinator.fail(life.worker, group=life.group)
        self._grouping.enter(life)

    def _come_to_regroup(self, life: Life) -> None:
        self.strikes.come_to(life, "regroup", step=life.position.step)

    def _respawn(self, dead: Life) -> None:
        world = self.world
        self._num_coming -= 1
        life = Life(len(world.lives), row=dead.row)
        life.lost_group_s = world.progress_s = world.now
        world.lives.append(life)
        world.sink(respawned(world.now, life, dead, left=self._respawns_left))
        ceiling = world.scenario.worker_nodes[life.row].max_samples
        self._coordinator.expect(life.worker, max_samples=ceiling or self._options.global_batch)
        self._attend()

    # --- time ------------------------------------------------------------------------------------

    def _attend(self) -> None:
        """From now on the coordinator looks about, until all is well."""
        if not self._is_ticking:
            self._is_ticking = True
            self.world.clock.schedule(self.world.now + TICK_S, self._tick, priority=1)

    def _tick(self) -> None:
        world = self.world
        self._is_ticking = False
        self._coordinator.hear(life.worker for life in world.lives if life.is_well(world.now))
        self._coordinator.tick()
        if world.now - self._shown_s >= SHOW_S:
            self._show_spares()
        is_hopeless = not self._num_coming and not any(life.is_alive for life in world.lives)
        is_stuck = world.now - world.progress_s > VIEW_WAIT_S and not self._is_moving()
        if is_hopeless or is_stuck:
            self.problem = (
                "no worker is left"
                if is_hopeless
                else f"the workers waited {VIEW_WAIT_S:.0f} s for a view to go on with, in vain"
            )
            world.clock.stop()
        elif not self._is_all_well():
            self._attend()

    def _show_spares(self) -> None:
        """Who was put out for being slow, and waits, shows how fast it is."""
        world = self.world
        self._shown_s = world.now
        for worker in self._coordinator.spares:
            life = world.lives[worker]
            if life.is_well(world.now) and life.lost_group_s is not None:
                slowdown = self._yardstick.slowdown_of(life, world.position.step, now=world.now)
                self._coordinator.show(worker, slowdown=slowdown)

    def _is_moving(self) -> bool:
        """Whether somebody will wake, come back, or be done with computing by itself."""
        now, present = self.world.now, self.world.round
        if present is not None and present.is_awaited(now):
            return True
        return any(
            life.is_alive and now < max(life.hung_until, life.cut_until)
            for life in self.world.lives
        )

    def _is_all_well(self) -> bool:
        world = self.world
        members = set(self._coordinator.state.members)
        if world.round is None or world.round.is_broken or world.view is None:
            return False
        # Who is alive and not a member was put out, or is new, and will ask to be let in.
        alive = {life.worker for life in world.lives if life.is_alive}
        is_settled = set(world.view.members) == members == alive
        return is_settled and all(life.is_well(world.now) for life in world.members)

    def _finish(self) -> None:
        self.world.clock.stop()
