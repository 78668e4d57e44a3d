# SPDX-License-Identifier: Apache-2.0
"""The workers of a job as those who have the tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from gangline.collectives import Group, Header
    from gangline.worker.job import Job

_EITHER = "a job divides either its batches (prepare) or its activations (tile)"


class JobPeers:
    """All workers that founded the job, by its own group; before `prepare`, which makes others."""

    def __init__(self, job: Job) -> None:
        session = job.opened()
        if job.training is not None:
            raise UsageError(f"gangline.tile was called after prepare(): {_EITHER}")
        if session.is_late:
            raise UsageError(
                "gangline.tile is for the workers that a job begins with, and this one came later: the "
                "others have all tiles"
            )
        self._job, self._communicator = job, session.communicator
        self.rank, self.size = session.group.rank, session.group.size

    def all_reduce(self, tensor: Tensor, header: Header | None = None) -> None:
        """The sum over all workers, in place."""
        self._call(lambda group: group.all_reduce(tensor, header))

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Replaces the tensor by the root's."""
        self._call(lambda group: group.broadcast(tensor, root))

    def send(self, tensor: Tensor, to: int) -> None:
        """Sends to one worker."""
        self._call(lambda group: group.send(tensor, to))

    def receive(self, tensor: Tensor, source: int) -> None:
        """Fills the tensor with what the source sends."""
        self._call(lambda group: group.receive(tensor, source))

    def _call(self, exchange: Callable[[Group], None]) -> None:
        if self._job.training is not None:
            raise UsageError(f"prepare() was called after gangline.tile: {_EITHER}")
        self._communicator.call(exchange)
