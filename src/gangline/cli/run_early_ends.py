# SPDX-License-Identifier: Apache-2.0
"""Tells a job's coordinator of workers that have ended, so that nobody waits for them to come."""

from __future__ import annotations

import threading
import urllib.error
from typing import TYPE_CHECKING

import msgspec

from gangline.cli.contact import RunContact
from gangline.runtime.coordinator.status import LeaveRequest
from gangline.spec.errors import LaunchError
from gangline.spec.tokens import OPERATOR_TOKEN

if TYPE_CHECKING:
    from gangline.engines.job import Job
    from gangline.engines.result import WorkerResult
    from gangline.engines.supervision import Watcher

_RETRY_S = 0.2


class EarlyEnds:
    """A watcher that passes everything on. The coordinator may not be there yet: it is asked again."""

    def __init__(self, job: Job, watcher: Watcher) -> None:
        self._job = job
        self._watcher = watcher
        self._is_over = threading.Event()

    def __enter__(self) -> EarlyEnds:
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()

    def tick(self) -> None:
        self._watcher.tick()

    def worker_ended(self, result: WorkerResult) -> None:
        # Who is started again comes with another number, and counts as the one that was expected.
        if result.has_failed and not self._job.respawns and self._job.coordinator is None:
            threading.Thread(target=self._tell, args=(result.worker,), daemon=True).start()
        self._watcher.worker_ended(result)

    def _tell(self, worker: int) -> None:
        request = msgspec.json.encode(LeaveRequest(worker=worker, has_ended=True))
        folder = self._job.run_dir
        while not self._is_over.is_set():
            try:
                RunContact(folder, token_file=folder / OPERATOR_TOKEN).ask(
                    "/api/leave", body=request
                )
            except (LaunchError, OSError, ValueError) as error:
                if isinstance(error.__cause__, urllib.error.HTTPError):
                    return
                self._is_over.wait(_RETRY_S)
            else:
                return
