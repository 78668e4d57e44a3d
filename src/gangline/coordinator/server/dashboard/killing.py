# SPDX-License-Identifier: Apache-2.0
"""Kills a worker of this machine, to see that its job survives it."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from gangline.protocol.launch import is_of_run
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from gangline.protocol.status import Status, WorkerStatus


class Killer:
    """Knows whom it has killed: for a while, a status still counts them as alive."""

    def __init__(self) -> None:
        self._killed: set[tuple[int, int]] = set()
        """Workers and their processes, until their connections are lost."""

    def kill(self, worker: int, status: Status, run_dir: Path | None) -> None:
        """Kills a worker's process. Raises UsageError where that cannot be, or would end the job."""
        connected = [one for one in status.workers if one.is_connected]
        self._killed &= {(one.worker, one.pid) for one in connected}
        alive = [one for one in connected if (one.worker, one.pid) not in self._killed]
        pid = _kill(worker, alive, status, run_dir)
        self._killed.add((worker, pid))


def _kill(worker: int, alive: list[WorkerStatus], status: Status, run_dir: Path | None) -> int:
    """The process that was killed."""
    found = next((one for one in alive if one.worker == worker), None)
    if found is None:
        raise UsageError(f"worker {worker} is not connected: there is nobody to kill")
    members = () if status.view is None else status.view.members
    holders = [one.worker for one in alive if one.worker in members and one.step >= 0]
    if worker in members and len(holders) < 2:
        raise UsageError(
            f"the state of the job would be lost with worker {worker}, the last to have it"
        )
    if run_dir is None or not is_of_run(found.pid, status.run, run_dir.resolve()):
        raise UsageError(
            f"worker {worker} is no process of this run on the coordinator's machine: kill it where it "
            f"runs ({found.host}, process {found.pid})"
        )
    try:
        os.kill(found.pid, signal.SIGKILL)
    except OSError as error:
        raise UsageError(f"worker {worker} could not be killed: {error.strerror}") from error
    return found.pid
