# SPDX-License-Identifier: Apache-2.0
"""The threads of a run: one for each worker, which computes itself or speaks for a process."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

from gangline.local.child import WorkerLost
from gangline.paramserver.functional.processes import Remote, write_job

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gangline.paramserver.functional.arguments import Settings
    from gangline.paramserver.functional.computing import Job, Outcome
    from gangline.paramserver.functional.leaves import Leaves
    from gangline.paramserver.functional.ledger import Portion
    from gangline.paramserver.functional.peers import Peer
    from gangline.paramserver.functional.server import Server

    Compute = Callable[[int, Portion, Leaves], Outcome]

_IMPORTABLE = (
    "the functions must be importable, and a script's own part begin with "
    "`if __name__ == '__main__':`"
)
_END_S = 2.0
"""How long a thread that is in the user's function is waited for when the run is broken off."""


class Crew:
    """All workers, from when it is entered until it is left, however that comes about."""

    def __init__(
        self, settings: Settings, job: Job, server: Server, peers: Sequence[Peer] = ()
    ) -> None:
        """With `peers`, this process is the first worker, and each of these another one."""
        self._peers = peers
        self._settings = settings
        self._job = job
        self._server = server
        self._remotes: list[Remote] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        try:
            computes: list[Compute] = [self._job.compute] * self._settings.workers
            if self._settings.where == "processes":
                computes = [remote.compute for remote in self._start_processes()]
            elif self._settings.where == "job":
                computes = [self._job.compute, *(peer.compute for peer in self._peers)]
            for worker, compute in enumerate(computes[: self._settings.workers]):
                self._threads.append(
                    threading.Thread(
                        target=_work, args=(self._server, worker, compute), daemon=True
                    )
                )
            for thread in self._threads:
                thread.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _start_processes(self) -> list[Remote]:
        file = write_job(self._job)
        try:
            for worker in range(self._settings.workers):
                patience_s = self._settings.patience_s
                self._remotes.append(Remote(worker, file, patience_s=patience_s))
            for worker, remote in enumerate(self._remotes):
                try:
                    remote.await_ready()
                except WorkerLost as lost:
                    self._server.lose(worker, None, f"before it was ready, {lost}; {_IMPORTABLE}")
        finally:
            file.close()  # who has read it keeps it
        return self._remotes

    def _end(self) -> None:
        self._server.stop()
        for remote in self._remotes:
            remote.end()
        until = time.monotonic() + _END_S
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=max(0.0, until - time.monotonic()))


def _work(server: Server, worker: int, compute: Compute) -> None:
    """A worker's life: takes, computes, pushes."""
    task = None
    try:
        while (task := server.take(worker)) is not None:
            server.push(worker, task, compute(worker, task.portion, task.model))
    except WorkerLost as lost:
        server.lose(worker, task, str(lost))
    except BaseException as error:  # whatever a user's function raises ends the run, in its caller
        server.fail(error)
