# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: offered where the state of this worker is that of the whole job."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gangline.worker.checkpoint.writer import Checkpointer
    from gangline.worker.loop.gear import Gear
    from gangline.worker.loop.progress import Progress
    from gangline.worker.sync.strategy import KeptAt


class Keeping:
    """Offers the state to the checkpointer, if there is one."""

    def __init__(self, gear: Gear, progress: Progress, checkpointer: Checkpointer | None) -> None:
        self._gear = gear
        self._progress = progress
        self.checkpointer = checkpointer

    def offer(self, moment: KeptAt) -> None:
        """The loop is between two batches, or two epochs, as `moment` says."""
        gear, strategy = self._gear, self._gear.mode.strategy
        is_right = moment is strategy.kept_at and strategy.is_first
        if self.checkpointer is not None and is_right and not gear.gradients.has_kept:
            self.checkpointer.offer(self._progress.position, gear.snapshot, gear.membership)

    def close(self) -> None:
        """Waits until what was begun is written."""
        if self.checkpointer is not None:
            self.checkpointer.close()
