# SPDX-License-Identifier: Apache-2.0
"""Carries out a fault plan on simulated workers: the twin of what a real worker does to itself."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from gangline.spec.event import FaultFired

if TYPE_CHECKING:
    from gangline.simulation.engine.rounds import Round
    from gangline.simulation.lives import Life
    from gangline.simulation.world import World
    from gangline.spec.faults import Fault, FaultPlan


class Observer(Protocol):
    """Who must know what befell a worker."""

    def on_hit(self, life: Life) -> None:
        """Something is about to happen to it."""

    def on_kill(self, life: Life) -> None:
        """It is dead."""

    def on_wake(self, life: Life) -> None:
        """It hung, and goes on."""

    def on_line(self, life: Life) -> None:
        """Its line to the coordinator went down or came up."""


class Strikes:
    """Which faults have happened, and what each of them does."""

    def __init__(self, world: World, plan: FaultPlan, *, observer: Observer) -> None:
        self.fired: list[Fault] = []
        self._world = world
        self._plan = plan
        self._observer = observer
        for fault in plan.faults:
            if fault.at_s is not None:
                world.clock.schedule(fault.at_s, partial(self._strike, fault))

    @property
    def unreached(self) -> tuple[Fault, ...]:
        """What the run has not come to."""
        left = list(self._plan.faults)
        for fault in self.fired:
            left.remove(fault)
        return tuple(left)

    # --- places ----------------------------------------------------------------------------------

    def come_to(self, life: Life, place: str, *, step: int) -> None:
        """A worker has come to a place of a step: what waits there happens."""
        while life.is_alive and (fault := life.next_fault((place,), step)) is not None:
            life.take(fault)
            self._strike(fault, step=step)

    def approach(self, ahead: Round, life: Life) -> None:
        """A worker is on its way: what waits for it at places before happens in its time."""
        step = ahead.position.step
        while life.is_alive and ahead.holds(life.worker):
            fault = life.next_fault(ahead.places, step)
            if fault is None:
                return
            place_s = ahead.place_s(life.worker, fault.place)
            if place_s > self._world.now:
                self._world.clock.schedule(place_s, lambda: self.approach(ahead, life))
                return
            life.take(fault)
            self._strike(fault, step=step)

    # --- what happens ----------------------------------------------------------------------------

    def _strike(self, fault: Fault, *, step: int | None = None) -> None:
        world = self._world
        life = world.lives[fault.worker]
        if not life.is_alive:
            return
        if life.is_hung(world.now):
            life.when_awake.append(lambda: self._strike(fault, step=step))
            return
        if step is None:
            step = world.position_of(life).step
        self.fired.append(fault)
        world.sink(
            FaultFired(
                t=world.now, worker=life.worker, step=step, fault=fault.kind, where=fault.place
            )
        )
        world.progress_s = world.now
        self._observer.on_hit(life)
        match fault.kind:
            case "kill":
                life.is_alive, life.struck_s = False, world.now
                self._observer.on_kill(life)
            case "hang":
                self._hang(life, fault.for_s or 0.0)
            case "slow":
                self._slow_down(life, fault, step)
            case _:
                self._cut(life, fault.for_s or 0.0)

    def _hang(self, life: Life, for_s: float) -> None:
        world = self._world
        life.struck_s, life.hung_until = world.now, world.now + for_s
        present = world.round_of(life)
        if present is not None and present.holds(life.worker):
            present.delay(life.worker, until=life.hung_until, now=world.now)
        world.later(for_s, lambda: self._wake(life))

    def _wake(self, life: Life) -> None:
        self._world.progress_s = self._world.now
        todo, life.when_awake = life.when_awake, []
        for action in todo:
            if life.is_hung(self._world.now):
                life.when_awake.append(action)
            elif life.is_alive:
                action()
        if life.is_alive and not life.is_hung(self._world.now):
            self._observer.on_wake(life)

    def _slow_down(self, life: Life, fault: Fault, step: int) -> None:
        assert fault.to is not None
        assert fault.for_steps is not None
        before = life.slow_factor if step < life.slow_until else 1.0
        life.slow_factor, life.slow_until = 1 / fault.to, step + fault.for_steps
        present = self._world.round_of(life)
        if present is not None and present.holds(life.worker):
            present.slow_down(life.worker, life.slow_factor / before, now=self._world.now)

    def _cut(self, life: Life, for_s: float) -> None:
        life.cut_until = self._world.now + for_s
        life.is_connected = False
        self._observer.on_line(life)
        self._world.later(for_s, lambda: self._reconnect(life))

    def _reconnect(self, life: Life) -> None:
        now = self._world.now
        if not life.is_alive or life.is_connected or now < life.cut_until:
            return
        if life.is_hung(now):
            life.when_awake.append(lambda: self._reconnect(life))
            return
        self._world.progress_s = now
        life.is_connected = True
        self._observer.on_line(life)
