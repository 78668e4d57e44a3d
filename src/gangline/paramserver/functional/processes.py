# SPDX-License-Identifier: Apache-2.0
"""Workers that are processes: each has a pipe, over which it is told its portions and the model.

The data and the functions lie in one file that all processes map, so that they are in memory once
(torch tensors are copied).
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

from gangline.local.answers import answered, outcome_of
from gangline.local.child import Child, live_with_parent, serve_parent
from gangline.local.mapped_file import write_mapped
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from gangline.local.mapped_file import MappedFile
    from gangline.paramserver.functional.computing import Job, Outcome
    from gangline.paramserver.functional.leaves import Leaves
    from gangline.paramserver.functional.ledger import Portion


class Remote:
    """The process of one worker, as the server's side sees it."""

    def __init__(self, worker: int, job: MappedFile, *, patience_s: float) -> None:
        self._patience_s = patience_s
        self._child = Child(serve, (worker, job), name=f"paramserv-{worker}")

    def await_ready(self) -> None:
        """Returns when the process has read the job."""
        self._child.await_ready()

    def compute(self, worker: int, portion: Portion, model: Leaves) -> Outcome:
        """As `Job.compute`, over there. Raises WorkerLost if the process ends, or takes too long."""
        limit_s = self._patience_s * len(portion.batches)
        content = pickle.dumps((portion, model), protocol=5)
        outcome: Outcome = outcome_of(self._child.ask(content, limit_s=limit_s))
        return outcome

    def end(self) -> None:
        """The process is gone when this returns."""
        self._child.end()


def write_job(job: Job) -> MappedFile:
    """A file that has the job, with its arrays as they lie in memory."""
    try:
        return write_mapped(job)
    except Exception as error:  # a pickled object may raise whatever it likes
        raise UsageError(
            f"where='processes' sends the functions, hyperparameters and data to other processes, and "
            f"these cannot be sent: {error}; define functions at the top level of a module, or use "
            f"where='threads'"
        ) from error


def serve(pipe: Connection, worker: int, file: MappedFile) -> None:
    """The whole life of a worker's process."""
    live_with_parent()
    job: Job = file.read()
    file.close()

    def answer(question: bytes) -> bytes:
        portion, model = pickle.loads(question)
        return answered(lambda: job.compute(worker, portion, model))

    serve_parent(pipe, answer)
