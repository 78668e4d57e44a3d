# SPDX-License-Identifier: Apache-2.0
"""The workers of a job in a Ray cluster: those of agents, which Ray's actors run instead of ssh.

Beside what holds for hosts: a worker that was killed is replaced, and so is one that left because its
node was about to end, as soon as Ray has a place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.engines.ending.leavers import has_left
from gangline.engines.hosts.engine import HostsEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.engines.hosts.seat import Seat
    from gangline.engines.job import Job
    from gangline.engines.ray.slots import Slots
    from gangline.engines.result import WorkerResult
    from gangline.engines.supervision import Watcher
    from gangline.protocol.agents import Ended


class RayEngine(HostsEngine):
    """The processes of one job in its actors."""

    def __init__(self, job: Job, seats: Sequence[Seat], slots: Slots, *, watcher: Watcher) -> None:
        super().__init__(job, seats, watcher=watcher)
        self._run_dir = job.run_dir
        self._slots = slots
        self._left: set[int] = set()

    def poll(self) -> list[WorkerResult]:
        """The workers that have ended since the last call."""
        if not self._stopping:
            self._slots.look()
        return super().poll()

    def _note_ended(self, ended: Ended) -> WorkerResult:
        place = self._running[ended.worker].host.name
        result = super()._note_ended(ended)
        if result.exit_code == 0 and has_left(self._run_dir, ended.worker):
            self._left.add(ended.worker)
        if result.signal is not None or ended.worker in self._left:
            self._done.discard(place)  # it gets another one
        return result

    @property
    def _is_over(self) -> bool:
        ended = self._results.values()
        return any(one.exit_code == 0 and one.worker not in self._left for one in ended)
