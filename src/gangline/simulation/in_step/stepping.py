# SPDX-License-Identifier: Apache-2.0
"""The steps of a simulated group: what its members are at, and what comes of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gangline.control import StepMeasured
from gangline.planning.allocation.ragged import cut_shares
from gangline.simulation.course import Position
from gangline.simulation.in_step.rounds import Round
from gangline.simulation.reporting import adopted, epoch_events, step_events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gangline.planning.allocation.bounds import Floats
    from gangline.simulation.in_step.coordinator import SimulatedCoordinator
    from gangline.simulation.in_step.grouping import Grouping
    from gangline.simulation.lives import Life
    from gangline.simulation.strikes import Strikes
    from gangline.simulation.views import ViewSchedule
    from gangline.simulation.world import World
    from gangline.simulation.yardstick import Yardstick
    from gangline.spec.view import View

METRICS_STEPS = 10
"""Steps between two measurements of what the `kqv` allocations need."""
TORN = 0.5
"""How likely an exchange is torn when a worker is struck as soon as it has the result: whether each of
the others has it too is then a matter of chance."""
_WITH_RESULT = ("update", "between")


class Stepping:
    """Leads the members of the present group from one step to the next."""

    def __init__(
        self,
        world: World,
        coordinator: SimulatedCoordinator,
        yardstick: Yardstick,
        *,
        views: ViewSchedule,
        rng: np.random.Generator,
        finish: Callable[[], None],
    ) -> None:
        """`rng` is for torn exchanges; `finish` is called when all steps are done."""
        self._world = world
        self._coordinator = coordinator
        self._yardstick = yardstick
        self._views = views
        self._rng = rng
        self._finish = finish

    def attach(
        self, strikes: Strikes, grouping: Grouping, *, steps: int, samples: int | None
    ) -> None:
        """What befalls the members, and how far they have to go."""
        self._strikes = strikes
        self._grouping = grouping
        self._steps = steps
        self._length = samples

    # --- the next thing to do --------------------------------------------------------------------

    def go_on(self) -> None:
        """All members are at the same position: they do what comes next."""
        world = self._world
        assert world.view is not None
        view = self._views.take(world.position.step)
        if view is not None and view.group != world.view.group:
            self._grouping.leave_together()
            return
        if view is not None:
            world.view = view
            world.sink(adopted(world.now, view, step=world.position.step))
        if self._is_epoch_over(world.position):
            self._begin(Round(world.view, world.position, started_s=world.now))
        elif world.position.step >= self._steps:
            self._finish()
        else:
            self._begin(self._attempt(world.view))

    def _is_epoch_over(self, position: Position) -> bool:
        if self._length is not None:
            return position.start >= self._length
        return position.step >= self._steps and position.epoch == 0

    def _attempt(self, view: View) -> Round:
        world, position = self._world, self._world.position
        stop = position.window_stop(view, length=self._length)
        parts = cut_shares(stop - position.start, view.shares, minimum=self._coordinator.minimum)
        samples = np.array(parts, dtype=np.int64)
        attempt = Round(
            view,
            position,
            started_s=world.now,
            compute_s=self._yardstick.compute_s(
                samples, step=position.step, now=world.now, faults=self._slow_factors()
            ),
        )
        attempt.samples = samples
        attempt.after = Position(step=position.step + 1, epoch=position.epoch, start=stop)
        ready_s = float(attempt.ready_s.max())
        attempt.exchange_s = self._yardstick.exchange_s(position.step, at_s=ready_s)
        attempt.lasts_s = attempt.exchange_s + world.scenario.update_s
        return attempt

    def _slow_factors(self) -> Floats:
        step = self._world.position.step
        members = self._world.members
        factors = np.ones(len(members))
        for rank, life in enumerate(members):
            if step < life.slow_until:
                factors[rank] = life.slow_factor
        return factors

    def _begin(self, ahead: Round) -> None:
        world = self._world
        world.round = ahead
        is_whole = True
        for life in world.members:
            if not life.is_alive or life.lost_group_s is not None:
                ahead.lose(life.worker)
                is_whole = False
            elif life.is_hung(world.now):
                ahead.delay(life.worker, until=life.hung_until, now=world.now)
            if life.has_faults:
                self._approach(ahead, life)
        if is_whole and not world.is_recalled:
            self._schedule_end(ahead)
        else:
            self._grouping.break_round(ahead)
        world.is_recalled = False

    def _schedule_end(self, ahead: Round) -> None:
        # After whatever happens to the last one on its way at the same instant.
        self._world.clock.schedule(ahead.end_s, lambda: self._end(ahead), priority=1)

    def _approach(self, ahead: Round, life: Life) -> None:
        # Not before everybody has set out: what happens at once may break the round.
        self._world.later(0.0, lambda: self._strikes.approach(ahead, life))

    # --- what comes of it ------------------------------------------------------------------------

    def _end(self, done: Round) -> None:
        world = self._world
        if done.is_broken or done.is_over:
            return
        if world.now < done.end_s:  # somebody was held up
            self._schedule_end(done)
            return
        victim = self._find_torn(done)
        if victim is not None:
            self._tear(done, victim)
            return
        done.is_over = True
        world.progress_s = world.now
        if done.is_step:
            self._end_step(done)
        else:
            for event in epoch_events(world.now, done):
                world.sink(event)
            world.position = Position(step=done.position.step, epoch=done.position.epoch + 1)
        self.go_on()

    def _end_step(self, done: Round) -> None:
        world, step = self._world, done.position.step
        lives = [life for life in world.members if life.worker not in done.ahead]
        for life in lives:
            if life.has_faults:
                self._strikes.come_to(life, "update", step=step)
        self._report(done, lives)
        self._yardstick.note(done, step_s=world.now - done.started_s)
        world.position = done.after
        if step % METRICS_STEPS == 0:
            self._coordinator.tell(self._yardstick.metrics(done.view.members))
        self._coordinator.see_step(
            StepMeasured(
                step=step,
                view=done.view.number,
                workers=done.view.members,
                samples=done.samples,
                compute_s=done.compute_s,
                exchange_s=done.exchange_s,
                step_s=world.now - done.started_s,
                hop_s=self._yardstick.hop_s(step),
            ),
            missing={life.worker for life in world.members if not life.is_well(world.now)},
        )

    def _report(self, done: Round, lives: Sequence[Life]) -> None:
        """These have done the step: they say so, now or when they wake, and go on."""
        world = self._world
        for life in lives:
            if life.is_hung(world.now):
                life.when_awake.append(partial(self._report, done, [life]))
        able = [one for one in lives if one.is_alive and not one.is_hung(world.now)]
        workers = [life.worker for life in able]
        for event in step_events(world.now, done, workers, scenario=world.scenario):
            world.sink(event)
        for life in able:
            if life.has_faults:
                self._strikes.come_to(life, "between", step=done.position.step)

    # --- exchanges that only some finish ---------------------------------------------------------

    def _find_torn(self, done: Round) -> Life | None:
        """Who is about to be struck with the result in hand, before the others all have it."""
        if not done.is_step or done.ahead:
            return None
        for life in self._world.members:
            fault = life.next_fault(_WITH_RESULT, done.position.step)
            if fault is not None and fault.kind in ("kill", "hang"):
                is_torn = len(self._world.members) > 1 and self._rng.random() < TORN
                return life if is_torn else None
        return None

    def _tear(self, done: Round, victim: Life) -> None:
        """Of the others, some have the result too where it dies, none where it only hangs."""
        step = done.position.step
        fault = victim.next_fault(_WITH_RESULT, step)
        is_kill = fault is not None and fault.kind == "kill"
        others = [life for life in self._world.members if life is not victim]
        lucky = [life for life in others if is_kill and self._rng.random() < TORN]
        done.ahead = {life.worker for life in (victim, *lucky)}
        self._yardstick.note(done, step_s=self._world.now - done.started_s)
        self._report(done, lucky)
        self._strikes.come_to(victim, "update", step=step)
        self._report(done, [victim])
        if victim.is_alive:
            self._schedule_end(done)
