# SPDX-License-Identifier: Apache-2.0
"""What the parts of a simulated run share: the clock, the workers, the group that trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from gangline.simulation.course import Position
from gangline.spec.event import AnyEvent

if TYPE_CHECKING:
    from gangline.simulation.clock import VirtualClock
    from gangline.simulation.course import Recovery
    from gangline.simulation.in_step.rounds import Round
    from gangline.simulation.lives import Life
    from gangline.simulation.scenario import Scenario
    from gangline.spec.view import View

Sink: TypeAlias = Callable[[AnyEvent], None]
"""Takes the events of the run, in order."""


class World:
    """The present state of everything that is simulated but the coordinator."""

    def __init__(
        self, scenario: Scenario, lives: list[Life], *, clock: VirtualClock, sink: Sink
    ) -> None:
        self.scenario = scenario
        self.lives = lives
        """All workers that there ever were, by number."""
        self.clock = clock
        self.sink = sink
        self.view: View | None = None
        """The view that the group in `round` trains by."""
        self.position = Position()
        """What the members of that group do next."""
        self.round: Round | None = None
        """What they are at; None while a new group is being made."""
        self.is_recalled = False
        """Whether the group was ended between two rounds: its members find out in the next."""
        self.recoveries: list[Recovery] = []
        self._latencies = [node.latency_s for node in scenario.worker_nodes]
        self.progress_s = 0.0
        """When something last happened that may lead on."""

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.clock.now

    @property
    def members(self) -> list[Life]:
        """The workers of the present view, by rank."""
        return [] if self.view is None else [self.lives[one] for one in self.view.members]

    def round_of(self, life: Life) -> Round | None:
        """What a worker's group is at."""
        return self.round

    def position_of(self, life: Life) -> Position:
        """What a worker does next."""
        return self.position if life.lost_group_s is None else life.position

    def latency_s(self, life: Life) -> float:
        """How long it takes until the coordinator has what a worker says, and has answered."""
        return self._latencies[life.row]

    def later(self, after_s: float, action: Callable[[], None]) -> None:
        """Has `action` run after so many seconds."""
        self.clock.schedule(self.now + after_s, action)
