# SPDX-License-Identifier: Apache-2.0
"""Starts workers again that were killed or ran out of memory: as newcomers, with new numbers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gangline.spec.event import Decision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangline.engines.job import Job
    from gangline.engines.local import WorkerCommand
    from gangline.engines.result import WorkerResult
    from gangline.eventlog import EventSink


class Respawner:
    """Decides which dead workers are replaced, and by what."""

    def __init__(
        self, job: Job, environment: Mapping[str, str], *, cores: int, events: EventSink
    ) -> None:
        self._job = job
        self._environment = environment
        self._cores = cores
        self._events = events
        self._origins = {worker: worker for worker in range(len(job.speeds))}

    def replace(self, result: WorkerResult) -> WorkerCommand | None:
        """The worker that takes the place of one that ended, if there shall be one."""
        number = len(self._origins)
        num_respawned = number - len(self._job.speeds)
        was_taken = result.signal is not None or result.ran_out_of_memory or result.was_refused
        if not was_taken or result.stopped or num_respawned >= self._job.respawns:
            return None
        if result.worker not in self._origins:  # of a host that came late: it comes again by itself
            return None
        origin = self._origins[number] = self._origins[result.worker]
        how = f"worker {result.worker} ended ({result.reason})"
        self._events.write(
            Decision(
                t=time.time(),
                what="respawn",
                reason=f"{how}: worker {number} takes its place",
                numbers={
                    "worker": float(number),
                    "of": float(result.worker),
                    "left": float(self._job.respawns - num_respawned - 1),
                },
            )
        )
        return self._job.replacement(
            number,
            of=origin,
            replaces=result.worker,
            environment=self._environment,
            cores=self._cores,
        )
