# SPDX-License-Identifier: Apache-2.0
"""Gives a job its coordinator: a process beside the workers, started again when it dies."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gangline.engines.local import LocalEngine, WorkerCommand
from gangline.eventlog import NullWriter
from gangline.spec.announcement import read_announcement
from gangline.spec.errors import LaunchError
from gangline.spec.event import Decision
from gangline.spec.plainfile import replace_plain
from gangline.spec.tokens import write_token

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangline.engines.job import Job
    from gangline.engines.result import WorkerResult
    from gangline.eventlog import EventSink

MAX_RESTARTS = 20
"""A coordinator that dies so often will not live; the workers go on without it while they can."""
_GRACE_S = 0.2
"""It holds nothing that a killed coordinator would lose."""


def coordinator_process(job: Job, environment: Mapping[str, str]) -> Coordination:
    """The job's coordinator as a process beside whatever runs the workers; nobody restarts it."""
    return Coordination(job, environment, events=NullWriter())


class Coordination:
    """The coordinator of a job while the job runs. Does nothing for a job that has one elsewhere."""

    def __init__(self, job: Job, environment: Mapping[str, str], *, events: EventSink) -> None:
        self._job = job
        self._environment = environment
        self._events = events
        self._num_restarts = 0
        self._engine = LocalEngine([self._command(0)], grace_s=_GRACE_S)

    def __enter__(self) -> Coordination:
        if self._job.coordinator is None:
            write_token(self._job.token_file)
            if self._job.profile is not None:
                replace_plain(self._job.profile_file, self._job.profile.to_json())
            self._engine.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._engine.stop()

    def tick(self) -> None:
        """Starts the coordinator again if it has died."""
        for result in self._engine.poll():
            self._restart(result)

    def _restart(self, result: WorkerResult) -> None:
        may_restart = self._num_restarts < MAX_RESTARTS
        self._num_restarts += 1
        what = "restart_coordinator" if may_restart else "give_up_coordinator"
        self._events.write(
            Decision(
                t=time.time(),
                what=what,
                reason=f"the coordinator ended ({result.reason}); the workers go on meanwhile",
                numbers={"restarts": float(self._num_restarts)},
            )
        )
        if may_restart:
            self._engine.add(self._command(self._last_port()))

    def _last_port(self) -> int:
        """Where it was found before: workers on other machines know no other place."""
        try:
            return urlsplit(read_announcement(self._job.run_dir).url).port or 0
        except LaunchError:
            return 0

    def _command(self, port: int) -> WorkerCommand:
        job = self._job
        return WorkerCommand(
            worker=0,
            arguments=(
                *("-m", "gangline.cli.main", "up"),
                *("--run-dir", str(job.run_dir), "--name", job.run, "--port", str(port)),
                *("--workers", str(len(job.speeds)), "--token-file", str(job.token_file)),
                *("--reserved", str(len(job.speeds) + job.respawns)),
                *("--detector", job.detector),
                *(("--patience", str(job.patience_s)) if job.patience_s is not None else ()),
                *(("--profile", str(job.profile_file)) if job.profile is not None else ()),
            ),
            environment=self._environment,
            log=job.run_dir / "coordinator.log",
        )
