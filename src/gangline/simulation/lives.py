# SPDX-License-Identifier: Apache-2.0
"""What can happen to a simulated worker: alive or dead, awake or hung, connected or cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.simulation.course import Position
from gangline.spec.faults import PLACES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gangline.spec.faults import Fault


class Life:
    """One worker, as far as something may go wrong with it."""

    def __init__(self, worker: int, *, row: int, faults: Iterable[Fault] = ()) -> None:
        self.worker = worker
        self.row = row
        """Which of the scenario's workers it is like: its own, or that of the one it replaces."""
        self.is_alive = True
        self.is_connected = True
        """Whether it has a line to the coordinator."""
        self.hung_until = 0.0
        self.cut_until = 0.0
        self.slow_factor = 1.0
        self.slow_until = 0
        """The first step that it computes as fast as before."""
        self.struck_s = 0.0
        """When it was last killed or hung."""
        self.position = Position()
        """Where it stands, while it is in no group."""
        self.lost_group_s: float | None = None
        """Since when it is in no group; None while it is in one."""
        faults = tuple(faults)
        self.is_marked = bool(faults)
        """Whether anything will ever happen to it: who is not marked acts like all the others."""
        self.when_awake: list[Callable[[], None]] = []
        """What it does next, once it wakes."""
        self._waiting = sorted(
            (fault for fault in faults if fault.step is not None),
            key=lambda fault: (PLACES.index(fault.place), fault.step),
        )

    def is_hung(self, now: float) -> bool:
        """Whether it does nothing at present."""
        return now < self.hung_until

    def is_well(self, now: float) -> bool:
        """Whether the coordinator hears of it."""
        return self.is_alive and self.is_connected and not self.is_hung(now)

    @property
    def has_faults(self) -> bool:
        """Whether something waits for it to come to a place in a step."""
        return bool(self._waiting)

    def next_fault(self, places: tuple[str, ...], step: int) -> Fault | None:
        """The first fault that is due at one of these places of a step, in the order of a step."""
        return next(
            (
                fault
                for fault in self._waiting
                if fault.place in places and fault.step is not None and fault.step <= step
            ),
            None,
        )

    def take(self, fault: Fault) -> None:
        """The fault happens: it waits no longer."""
        if fault in self._waiting:
            self._waiting.remove(fault)
