# SPDX-License-Identifier: Apache-2.0
"""Notices a loss that is not reduced as `prepare` was told: a sum that passes for a mean, or not.

Members with unlike shares show it. Every header says how large each member's gradient is, as if the
loss were reduced as said. If it is, a member with twice the samples has a gradient of the same size, or
of 1/√2 of it where noise prevails: plotted over the share, both as logarithms, sizes have a slope from
-0.5 to 0. A sum that passes for a mean has one from 0.5 to 1, a mean that passes for a sum one from
-1.5 to -1. The slope is estimated over many passes, together with how uncertain it is. Where all shares
are equal there is nothing to be seen.

Two things keep it from false alarms. Only the first passes are looked at: later, when most samples are
learnt, few have large gradients, and a large share has one of them more often. And what the graph of
the loss says of its reduction is believed.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.nn.modules.batchnorm import _BatchNorm

from gangline.planning.allocation.ragged import cut_shares
from gangline.worker.checks.lossgraph import MEAN, SUM, reductions_of
from gangline.worker.checks.scrutiny import NOT_FINITE, UNSAID, norm_of
from gangline.worker.gradients import backward
from gangline.worker.usercode import find_caller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from gangline.spec.view import View
    from gangline.worker.gradients.agreement import Agreed
    from gangline.worker.samples.handout import Handout

MIN_PASSES = 16
"""From fewer passes nothing is concluded."""
_MAX_PASSES = 128
_CERTAINTY = 4.0
"""So many standard errors must lie between the slope and the limit."""
_LIMITS = {MEAN: 0.25, SUM: -0.75}
_LEAST_NORMALISED = 8
"""BatchNorm over fewer samples than these makes gradients smaller by itself."""


@dataclass(slots=True)
class Slope:
    """A slope that many passes tell something of, each by a few points."""

    passes: int = 0
    squares: float = 0.0
    products: float = 0.0
    _square_square: float = 0.0
    _product_square: float = 0.0
    _product_product: float = 0.0

    def add(self, points: Sequence[tuple[float, float]]) -> None:
        """One pass; only differences between its points count."""
        if len(points) < 2:
            return
        mean_x = sum(x for x, _ in points) / len(points)
        square = sum((x - mean_x) ** 2 for x, _ in points)
        product = sum((x - mean_x) * y for x, y in points)
        if square == 0:
            return
        self.passes += 1
        self.squares += square
        self.products += product
        self._square_square += square * square
        self._product_square += product * square
        self._product_product += product * product

    @property
    def value(self) -> float:
        return self.products / self.squares

    @property
    def error(self) -> float:
        """The standard error, from how much the passes differ."""
        slope = self.value
        spread = (
            self._product_product
            - 2 * slope * self._product_square
            + slope * slope * self._square_square
        )
        return math.sqrt(max(0.0, spread)) / self.squares


class ReductionCheck:
    """Looks at every exchange, and warns once."""

    def __init__(self, reduction: str, *, models: Sequence[nn.Module], minimum: int, order: str):
        self._reduction = reduction
        self._minimum = minimum
        has_batch_norm = any(isinstance(m, _BatchNorm) for model in models for m in model.modules())
        self._least = _LEAST_NORMALISED if has_batch_norm else 1
        self._is_repeating = order == "sequential"
        self._slopes: dict[int, Slope] = {}
        self._seen: set[tuple[object, ...]] = set()
        self._is_over = False

    def note(self, agreed: Agreed, handout: Handout, view: View) -> None:
        """All members' gradients of one backward pass. Warns when it is certain enough."""
        if self._is_over or len(set(view.shares)) < 2:
            return
        parts = cut_shares(handout.total, view.shares, minimum=self._minimum)
        if not self._is_new(agreed.most.made.phase, handout, parts):
            return
        slope = self._slopes.setdefault(agreed.most.made.phase, Slope())
        slope.add(
            [
                (math.log2(part), math.log2(norm_of(size)))
                for part, size in zip(parts, agreed.sizes, strict=True)
                if part >= self._least and UNSAID < size < NOT_FINITE
            ]
        )
        if slope.passes < MIN_PASSES:
            return
        self._is_over = slope.passes >= _MAX_PASSES
        if self._is_wrong(slope):
            self._is_over = True
            if self._reduction not in reductions_of(backward.losses()):
                warnings.warn(self._words(slope), UserWarning, stacklevel=find_caller().depth)

    def _is_new(self, phase: int, handout: Handout, parts: list[int]) -> bool:
        """Whether these samples were not cut in this way before: the same ones prove nothing twice."""
        if not self._is_repeating:
            return True
        key = (phase, handout.window_stop, *parts)
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new

    def _is_wrong(self, slope: Slope) -> bool:
        margin = _CERTAINTY * slope.error
        if self._reduction == SUM:
            return slope.value + margin < _LIMITS[SUM]
        return slope.value - margin > _LIMITS[MEAN]

    def _words(self, slope: Slope) -> str:
        ratio = 2.0**slope.value
        if self._reduction == SUM:
            return (
                f"over {slope.passes} backward passes, a worker with twice the samples had a gradient "
                f"{2 * ratio:.2f} times as large, where that of a sum would be 1.41 to 2 times as "
                'large. prepare() was told reduction="sum", and the loss seems to be a mean over the '
                "batch: leave reduction= out, or the result is not that of one process"
            )
        return (
            f"over {slope.passes} backward passes, a worker with twice the samples had a gradient "
            f"{ratio:.2f} times as large, where that of a mean would be 0.71 to 1 times as large. The "
            'loss seems to be a sum over the batch: give prepare(reduction="sum"), or make it a mean; '
            "else the result depends on the shares. (So it does with a loss that compares the samples "
            "of a batch with each other.)"
        )
