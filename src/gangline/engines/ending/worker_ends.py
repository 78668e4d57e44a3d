# SPDX-License-Identifier: Apache-2.0
"""How a launcher writes down that a worker has ended, under the number that the job knows it by."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gangline.engines.logtail import read_tail
from gangline.eventlog import LogNotes, events_dir, read_events
from gangline.spec.errors import LogError
from gangline.spec.event import Decision, LogOpened, WorkerEnded

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.engines.job import Job
    from gangline.engines.result import WorkerResult

_OUTPUT_BYTES = 2000


class WorkerEnds:
    """The workers of a job. Those that join another one are numbered there: their logs say how."""

    def __init__(self, job: Job, pid_of: Callable[[int], int]) -> None:
        self._job = job
        self._pid_of = pid_of
        self._is_joining = job.coordinator is not None

    def event_of(self, result: WorkerResult) -> WorkerEnded | Decision:
        """What is written to the launcher's log."""
        number = self._number_of(result.worker) if self._is_joining else result.worker
        if number is None:
            reason = f"a worker that was to join ended before it took part: {result.reason}"
            return Decision(t=time.time(), what="never_joined", reason=reason, numbers={})
        return WorkerEnded(
            t=time.time(),
            worker=number,
            exit_code=result.exit_code,
            signal=result.signal,
            reason=result.reason,
            output=self._output_of(result) if self._is_joining and result.has_failed else "",
        )

    def _number_of(self, place: int) -> int | None:
        pid = self._pid_of(place)
        for path in events_dir(self._job.run_dir).glob("worker-*.jsonl"):
            try:
                first = next(read_events(path, notes=LogNotes(path=str(path))), None)
            except LogError:
                continue
            if isinstance(first, LogOpened) and first.pid == pid:
                return int(first.source.removeprefix("worker "))
        return None

    def _output_of(self, result: WorkerResult) -> str:
        """Whoever reads the log on another machine cannot look into the file."""
        shown = result.traceback or read_tail(
            self._job.log_of(result.worker), limit_bytes=_OUTPUT_BYTES
        )
        return shown[-_OUTPUT_BYTES:]
