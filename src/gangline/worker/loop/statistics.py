# SPDX-License-Identifier: Apache-2.0
"""The pass that is under way, for batch statistics, which are exchanged in the middle of it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from gangline.worker.gradients.exchange import resolved
from gangline.worker.normalisation.sync_batchnorm import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.spec.errors import ExchangeError
    from gangline.worker.loop.gear import Gear
    from gangline.worker.loop.progress import Progress
    from gangline.worker.loop.recovery import Recovery
    from gangline.worker.samples.fetched import Fetched


class PresentPass:
    """What a layer must know of the batch that it is given."""

    def __init__(self, gear: Gear, progress: Progress, recovery: Recovery) -> None:
        self._gear = gear
        self._progress = progress
        self._recovery = recovery

    @property
    def _batch(self) -> Fetched | None:
        """The batch that the present pass is of, forward or backward."""
        batches = self._gear.batches
        return batches.present if self._gear.gradients.in_backward else batches.forwarded

    def place_now(self) -> Place | None:
        """The batch that the loop works on; None where it works on none of the job's."""
        batch = self._batch
        if batch is None or self._progress.is_past:
            return None
        handout = batch.handout
        return Place(handout.view, handout.epoch, handout.step, handout.micro)

    def weight_now(self) -> float:
        """How much the gradients of that batch count; 0 for a ghost."""
        batch = self._batch
        if batch is None or batch is self._gear.batches.present:
            return self._gear.gradients.weight
        return resolved(batch.weight)

    @property
    def is_void(self) -> bool:
        """Whether the attempt at that batch has failed already, or must fail."""
        batch = self._batch
        return self._progress.is_void or batch is None or batch.is_void

    @contextmanager
    def amid_computing(self) -> Iterator[None]:
        """An exchange before the local gradients are there: its time is none of computing."""
        gear = self._gear
        gear.clock.computed()
        if gear.pacer is not None:
            gear.pacer.pause()
        try:
            yield
        finally:
            if gear.pacer is not None:
                gear.pacer.resume()
            gear.faults.wait(gear.clock.exchanged())

    def lose(self, error: ExchangeError) -> None:
        """Such an exchange failed: the attempt is void."""
        self._recovery.lose(error)
