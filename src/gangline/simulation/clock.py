# SPDX-License-Identifier: Apache-2.0
"""Virtual time: a heap of what is to happen, and nothing that waits.

clock = VirtualClock()
clock.schedule(1.5, lambda: ...)
clock.run()
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class VirtualClock:
    """Runs actions in the order of (time, priority, order of scheduling): ties are no accident."""

    def __init__(self) -> None:
        self.now = 0.0
        """Virtual seconds since the start."""
        self._heap: list[tuple[float, int, int, Callable[[], None]]] = []
        self._sequence = 0

    def schedule(self, at: float, action: Callable[[], None], *, priority: int = 0) -> None:
        """Has `action` run at the time `at`; of those at one time, the lowest priority first."""
        if at < self.now:
            raise ValueError(f"cannot schedule at {at}: it is {self.now} already")
        heapq.heappush(self._heap, (at, priority, self._sequence, action))
        self._sequence += 1

    def run(self) -> None:
        """Runs all actions, those that they schedule included, until none is left."""
        while self._heap:
            self.now, _, _, action = heapq.heappop(self._heap)
            action()

    def stop(self) -> None:
        """Forgets what is still to happen."""
        self._heap.clear()
