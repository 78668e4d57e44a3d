# SPDX-License-Identifier: Apache-2.0
"""How large this worker's own part of a gradient is: computed where the gradient is, and read later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gangline.worker.checks.scrutiny import NOT_FINITE, UNSAID, size_of
from gangline.worker.gradients.streams import is_queued, mark

if TYPE_CHECKING:
    from collections.abc import Sequence


class PassSize:
    """The size of one backward pass, as `scrutiny` counts it."""

    def __init__(self, squares: Sequence[torch.Tensor], *, part: float, is_mixed: bool) -> None:
        """`squares` are those of the units, `part` is this worker's of the batch.

        `is_mixed`: rank 0 adds what an earlier pass left, which is not this worker's alone.
        """
        self._part, self._is_mixed = part, is_mixed
        devices = {square.device for square in squares}
        # Each device is asked once, since asking takes as long as many a sum.
        sums = {
            device: torch.stack([s for s in squares if s.device == device]).sum(dtype=torch.float64)
            for device in devices
        }
        self._sums = [one.to("cpu", non_blocking=is_queued(device)) for device, one in sums.items()]
        self._marks = [one for one in map(mark, devices) if one is not None]

    @property
    def is_there(self) -> bool:
        """Whether it can be read without waiting for a device."""
        return all(one.query() for one in self._marks)  # type: ignore[no-untyped-call]

    def read(self) -> int:
        """The size; waits for it. Unsaid where it is finite, and not this worker's alone."""
        for one in self._marks:
            one.synchronize()
        size = size_of(sum(float(one.numpy()) for one in self._sums), self._part)
        return UNSAID if self._is_mixed and size < NOT_FINITE else size
