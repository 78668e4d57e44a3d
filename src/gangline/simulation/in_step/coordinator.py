# SPDX-License-Identifier: Apache-2.0
"""The coordinator's side of a simulated run: what it sees, and what it has decided because of it.

The eyes (`Watch`), the list of wishes (`Changes`) and the mind (`decide`) are those of the real one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.control import (
    ControlState,
    KeepPlan,
    PublishView,
    Say,
    SpareMeasured,
    TakeBack,
    WorkersJoined,
    WorkersLost,
    decide,
)
from gangline.control.members.changes import Changes
from gangline.control.members.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gangline.control import ControlEvent, ControlOptions, StepMeasured
    from gangline.simulation.clock import VirtualClock
    from gangline.spec.event import Decision, PlanMade

TICK_S = 0.05
"""How often the coordinator looks whether somebody is missing."""


class SimulatedCoordinator:
    """Turns what is heard of the workers into views."""

    def __init__(
        self,
        options: ControlOptions,
        *,
        clock: VirtualClock,
        publish: Callable[[PublishView], None],
        say: Callable[[Decision | PlanMade], None],
    ) -> None:
        self.state = ControlState.begin(options)
        self._clock = clock
        self._publish = publish
        self._say = say
        self._changes = Changes()
        self._watch = Watch((), clock.now)
        self._away: set[int] = set()
        self._ceilings: dict[int, int] = {}
        self._group = -1
        self._members: tuple[int, ...] = ()
        self._untold: list[tuple[StepMeasured, set[int]]] = []

    @property
    def minimum(self) -> int:
        """The least share that a worker can use."""
        return self.state.options.minimum

    def tell(self, event: ControlEvent) -> None:
        """Has something decided, and carries it out."""
        if isinstance(event, WorkersJoined):
            ceilings = event.max_samples or ()
            self._ceilings.update(zip(event.workers, ceilings, strict=True))
        self.state, commands = decide(self.state, event, self._clock.now)
        for command in commands:
            if isinstance(command, PublishView):
                self._begin_group(command)
                self._publish(command)
            elif isinstance(command, KeepPlan):
                self._say(command.made)
            elif isinstance(command, TakeBack):
                self._changes.want_in(command.worker)
            elif isinstance(command, Say):
                self._say(command.decision)

    def hear(self, workers: Iterable[int]) -> None:
        """These workers gave a sign of life."""
        for worker in workers:
            self._watch.hear(worker, self._clock.now)

    def connect(self, worker: int) -> None:
        """A worker's line is up again."""
        self._away.discard(worker)
        self._watch.hear(worker, self._clock.now)

    def disconnect(self, worker: int) -> None:
        """A worker's line went down; the worker itself may be well."""
        self._away.add(worker)
        self._changes.forget(worker)
        self._watch.lose_connection(worker, self._clock.now)

    def fail(self, worker: int, *, group: int) -> None:
        """A worker says that an exchange of its group failed."""
        view = self.state.view
        assert view is not None
        if self.state.oversight.spare(worker) is not None:
            return  # it was put out for being slow, and shows when it is not any more
        if worker not in view.members:
            self._changes.want_in(worker)
        elif group == view.group:
            self._watch.report_failure(worker, "a peer is gone", self._clock.now)
            self._look()

    @property
    def spares(self) -> tuple[int, ...]:
        """Who was put out for being slow, and was not asked back yet."""
        return tuple(one.worker for one in self.state.oversight.spares)

    def show(self, worker: int, *, slowdown: float) -> None:
        """A spare shows how many times as long as at first it takes."""
        self.tell(SpareMeasured(worker=worker, slowdown=slowdown))

    def expect(self, worker: int, *, max_samples: int) -> None:
        """A newcomer is ready to take part."""
        self._ceilings[worker] = max_samples
        self._changes.want_in(worker)

    def see_step(self, measured: StepMeasured, *, missing: set[int]) -> None:
        """A step was done; it is told to the mind when the reports that are missing are there too."""
        self._untold.append((measured, missing))
        if len(missing) < len(measured.workers):
            self._changes.see_step(measured.view)
            self._watch.report_step(
                self._clock.now, step=measured.step, is_own=self._changes.is_settled
            )
        self._tell_steps()

    def hear_reports(self, worker: int) -> None:
        """The reports of a worker that could not speak before."""
        for _, missing in self._untold:
            missing.discard(worker)
        self._tell_steps()

    def _tell_steps(self) -> None:
        while self._untold and not self._untold[0][1]:
            self.tell(self._untold.pop(0)[0])

    def tick(self) -> None:
        """Looks whether somebody is missing, and grants what was asked for."""
        self._look()
        change = self._changes.next(self.state.members)
        if change is None or not change.joining:
            return
        ceilings = tuple(self._ceilings[worker] for worker in change.joining)
        self.tell(WorkersJoined(workers=change.joining, max_samples=ceilings))

    def _look(self) -> None:
        found = self._watch.find_lost(self._clock.now)
        if found is not None:
            self.tell(WorkersLost(workers=found[0], reason=found[1]))

    def _begin_group(self, command: PublishView) -> None:
        view, now = command.view, self._clock.now
        if view.group == self._group:
            return
        self._changes.begin_group(view.number, old=self._members, new=view.members)
        self._group, self._members = view.group, view.members
        self._untold = []
        self._watch = self._watch.succeed(view.members, now)
        for worker in view.members:
            if worker in self._away:
                self._watch.lose_connection(worker, now)
