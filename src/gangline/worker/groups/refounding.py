# SPDX-License-Identifier: Apache-2.0
"""All members that had the state of the job are lost, and only newcomers are left, which have none.

With a checkpoint folder they go on from its newest checkpoint, as founders would. Without one they
end: what they could train would be another model, from its beginning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.spec.errors import LeftBehindError
from gangline.worker.checkpoint.resuming import Source, agree_on_start
from gangline.worker.prepare.handshake import copy_state, copy_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.collectives import Group
    from gangline.worker.checkpoint.files import CheckpointFolder
    from gangline.worker.checkpoint.resuming import Start
    from gangline.worker.prepare.handshake import Introduction
    from gangline.worker.prepare.prepared import Prepared

_LOST = "the state of the job is lost: all that had it ended before this worker could copy it, and "


class Refounding:
    """Gives the members of a group the state of the newest checkpoint."""

    def __init__(
        self, folder: CheckpointFolder | None, prepared: Prepared, introduction: Introduction
    ) -> None:
        self._folder = folder
        self._prepared = prepared
        self._introduction = introduction
        self.tell: Callable[[Start], None] = lambda start: None
        """Told by rank 0 where the job goes on."""

    def begin(self, group: Group, *, is_team: bool) -> Start:
        """Where the job goes on; all members have that state. Raises LeftBehindError, on all alike.

        A team cannot go back by itself: the others have merged what came after the checkpoint.
        """
        if is_team:
            raise LeftBehindError(f"{_LOST}other teams have gone on. Start this worker again")
        if self._folder is None:
            raise LeftBehindError(
                f"{_LOST}there is no checkpoint folder to go on from. Call "
                "prepare(…, checkpoint=FOLDER), so that newcomers can"
            )
        prepared = self._prepared
        source = Source(self._folder, is_resuming=True)
        start = agree_on_start(group, source, prepared, introduction=self._introduction)
        if start is None:
            raise LeftBehindError(
                f"{_LOST}no checkpoint was written to {self._folder.root} yet. Start the job again"
            )
        parameters = [p for model in prepared.models for p in model.parameters()]
        buffers = [buffer for model in prepared.models for buffer in model.buffers()]
        copy_tensors(group, [*parameters, *buffers])
        copy_state(group, [*prepared.optimizers, *prepared.stateful])
        if group.rank == 0:
            self.tell(start)
        return start
