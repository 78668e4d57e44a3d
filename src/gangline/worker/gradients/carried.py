# SPDX-License-Identifier: Apache-2.0
"""The gradients that a loop carries over from batch to batch, because it has not zeroed them.

A loop that counts its own windows, that steps one of its optimizers at every second batch, or that
never zeroes its gradients adds each batch's gradient to what the batches before have left. An attempt
at a batch that fails destroys that sum, so it is kept when the batch's first backward pass begins, and
put back when the batch is handed out again. Workers that join, and checkpoints, get it too. A loop that
zeroes its gradients pays nothing: it has none when the pass begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.worker.gradients.layout import Content

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from gangline.worker.gradients.layout import Slot

Values = list["Tensor | None"]
"""The gradient of each slot's parameter, where it has one."""

_LOOKS = 2
"""After how many batches a loop that has carried nothing is taken to zero its gradients."""


class CarriedGradients:
    """What the parameters' gradients are outside of attempts at a batch."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._kept: Values = []
        self._is_untouched = True
        """Whether what the gradients hold now counts: nothing was added to it that may fail."""
        self._must_put_back = False
        self._num_looks = 0
        self._has_carried = False

    def begin_batch(self, *, is_first: bool, is_done: bool) -> None:
        """A batch is handed out, perhaps again.

        `is_first`: it is the first part of its window. `is_done`: a pass of it was applied already,
        and is run once more for the sake of the loop; what was carried is put back behind that one.
        """
        self._is_untouched = self._is_untouched or is_first
        if is_done:
            self._is_untouched = False
        elif self._must_put_back:
            self.put_back()

    def begin_pass(self, *, may_fail: bool = True) -> None:
        """A backward pass begins, and adds to what there is."""
        if not self._is_untouched:
            return
        self._is_untouched = False
        self._num_looks += 1
        has_any = any(slot.parameter.grad is not None for slot in self._slots)
        self._has_carried = self._has_carried or has_any
        self._kept = self._live() if has_any and may_fail else []

    def commit(self) -> None:
        """An optimizer has made its step: what the gradients hold now is what counts."""
        self._is_untouched = True

    def void(self) -> None:
        """The attempt failed. What counts is what was kept, or what there still is."""
        if self._is_untouched:
            self._kept = self._live()
            self._is_untouched = False
        self._must_put_back = True

    def put_back(self) -> None:
        """The gradients are what they were before the attempt that failed."""
        if self._must_put_back:
            for slot, values in zip(self._slots, self._kept or self._nothing, strict=True):
                slot.parameter.grad = None if values is None else values.clone()
                slot.content = Content.EMPTY  # the next pass finds a gradient that was put there
        self._must_put_back = False
        self._is_untouched = True

    def export(self) -> Values | None:
        """What others must be given to go on from here; None where the loop carries nothing."""
        if self._must_put_back:
            return self._kept or None
        if self._num_looks >= _LOOKS and not self._has_carried:
            return None
        values = self._live()
        return values if any(value is not None for value in values) else None

    def load(self, values: Values | None) -> None:
        """Goes on from what somebody else has exported, at the next batch that is handed out."""
        self._kept = values or []
        self._must_put_back, self._is_untouched = True, False

    @property
    def _nothing(self) -> Values:
        return [None] * len(self._slots)

    def _live(self) -> Values:
        """Copies of the gradients; what was not exchanged yet is this worker's alone."""
        return [
            None
            if slot.parameter.grad is None or slot.content is Content.LOCAL
            else slot.parameter.grad.detach().clone()
            for slot in self._slots
        ]
