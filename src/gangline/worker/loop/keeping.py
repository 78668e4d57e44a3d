# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: offered where the state of this worker is that of the whole job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.worker.sync.strategy import KeptAt

if TYPE_CHECKING:
    from gangline.worker.checkpoint.writer import Checkpointer
    from gangline.worker.loop.gear import Gear
    from gangline.worker.loop.progress import Progress


class Keeping:
    """Offers the state to the checkpointer, if there is one."""

    def __init__(self, gear: Gear, progress: Progress, checkpointer: Checkpointer | None) -> None:
        self._gear = gear
        self._progress = progress
        self.checkpointer = checkpointer
        if checkpointer is not None:
            checkpointer.before = gear.late_sizes.settle

    def offer(self, moment: KeptAt) -> None:
        """The loop is between two batches, or two epochs, as `moment` says."""
        gear, client = self._gear, self._gear.session.client
        if moment is not gear.mode.strategy.kept_at:
            return
        is_asked = client is not None and client.is_save_asked
        is_settled = True
        if self.checkpointer is not None and self._can_keep(moment):
            is_settled = self.checkpointer.offer(
                self._progress.position, gear.snapshot, gear.membership, is_asked=is_asked
            )
        if is_asked and is_settled and client is not None:
            client.is_save_asked = False  # also where it is somebody else's to write it

    def keep_last(self) -> None:
        """The loop is between two steps, and this worker is the last that has the state of the job."""
        gear, progress = self._gear, self._progress
        if self.checkpointer is None or progress.is_void or gear.session.group.size > 1:
            return
        if self._can_keep(KeptAt.STEP):
            self.checkpointer.keep_last(progress.position, gear.snapshot, gear.membership)

    def _can_keep(self, moment: KeptAt) -> bool:
        """Whether the state of this worker is that of the whole job."""
        strategy = self._gear.mode.strategy
        is_right = moment is strategy.kept_at and strategy.is_first
        return is_right and not self._gear.gradients.has_kept

    def close(self) -> None:
        """Waits until what was begun is written."""
        if self.checkpointer is not None:
            self.checkpointer.close()
