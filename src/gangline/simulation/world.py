# SPDX-License-Identifier: Apache-2.0
"""What the parts of a simulated run share: the clock, the workers, the log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from gangline.spec.event import AnyEvent

if TYPE_CHECKING:
    from gangline.simulation.clock import VirtualClock
    from gangline.simulation.course import Position, Recovery
    from gangline.simulation.engine.rounds import Round
    from gangline.simulation.lives import Life
    from gangline.simulation.scenario import Scenario

Sink: TypeAlias = Callable[[AnyEvent], None]
"""Takes the events of the run, in order."""


class World(ABC):
    """The present state of everything that is simulated but the coordinator."""

    def __init__(
        self, scenario: Scenario, lives: list[Life], *, clock: VirtualClock, sink: Sink
    ) -> None:
        self.scenario = scenario
        self.lives = lives
        """All workers that there ever were, by number."""
        self.clock = clock
        self.sink = sink
        self.recoveries: list[Recovery] = []
        self.nodes = scenario.worker_nodes
        """Which node each of the scenario's workers is on."""
        self._latencies = [node.latency_s for node in self.nodes]
        self.progress_s = 0.0
        """When something last happened that may lead on."""

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.clock.now

    @abstractmethod
    def round_of(self, life: Life) -> Round | None:
        """What a worker's group is at."""

    @abstractmethod
    def position_of(self, life: Life) -> Position:
        """What a worker does next."""

    def half_s(self, life: Life) -> float:
        """How long a message takes between a worker and the coordinator.

        What is said before the clock goes on is there at once: founding a job takes no time.
        """
        return self._latencies[life.row] / 2 if self.now else 0.0

    def later(self, after_s: float, action: Callable[[], None]) -> None:
        """Has `action` run after so many seconds."""
        self.clock.schedule(self.now + after_s, action)
