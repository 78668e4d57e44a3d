# SPDX-License-Identifier: Apache-2.0
"""Upsampling: each output place is one input place, or lies between two, along each dimension."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gangline.tiling.geometry import EMPTY, Box, Range, Shape
from gangline.tiling.layers.base import Layer, Part

if TYPE_CHECKING:
    from collections.abc import Sequence


class Resample(Layer):
    """`nn.Upsample` and `F.interpolate`, nearest or linear (in any number of dimensions)."""

    def __init__(
        self, *, is_linear: bool, aligns_corners: bool, factors: Sequence[float] | None
    ) -> None:
        """`factors` are those that the user gave; None: what the sizes make."""
        self._is_linear, self._aligns, self._factors = is_linear, aligns_corners, factors

    def work(self, shapes: Sequence[Shape]) -> float:
        return 3.0 * (len(shapes[0]) - 2) if self._is_linear else 1.0

    def needs(self, box: Box, shapes: Sequence[Shape], shape: Shape) -> tuple[Box, ...]:
        space = []
        for dim, span in enumerate(box[2:], 2):
            if span[0] >= span[1]:
                space.append(EMPTY)
                continue
            low = self._sources((span[0], span[0] + 1), dim, shapes[0], shape)[0]
            high = self._sources((span[1] - 1, span[1]), dim, shapes[0], shape)[1]
            space.append((int(low[0]), int(high[0]) + 1))
        return ((box[0], box[1], *space),)

    def compute(self, inputs: Sequence[Tensor], part: Part) -> Tensor:
        tensor = inputs[0]
        for dim, span in enumerate(part.box[2:], 2):
            low, high, weight = self._sources(span, dim, part.shapes[0], part.shape)
            first = part.needs[0][dim][0]
            one = tensor.index_select(dim, (low - first).to(tensor.device))
            if self._is_linear:
                other = tensor.index_select(dim, (high - first).to(tensor.device))
                ones = [1] * (tensor.dim() - dim - 1)
                share = weight.to(tensor).view(-1, *ones)
                one = one * (1 - share) + other * share
            tensor = one
        return tensor

    def _sources(
        self, span: Range, dim: int, inputs: Shape, outputs: Shape
    ) -> tuple[Tensor, Tensor, Tensor]:
        """For each output place the two input places around it, and the weight of the second."""
        length = inputs[dim]
        places = torch.arange(*span, dtype=torch.float64)
        scale = length / outputs[dim] if self._factors is None else 1 / self._factors[dim - 2]
        if not self._is_linear:
            at = places * scale
        elif self._aligns:
            at = places * ((length - 1) / max(1, outputs[dim] - 1))
        else:
            at = ((places + 0.5) * scale - 0.5).clamp(min=0)
        low = at.floor().long().clamp(max=length - 1)
        high = (low + 1).clamp(max=length - 1) if self._is_linear else low
        return low, high, at - low


def whole_factors(shape: Shape, outputs: Shape) -> bool:
    """Whether each output length is a multiple of the input's: nearest is then free of rounding."""
    return all(math.fmod(out, length) == 0 for length, out in zip(shape, outputs, strict=True))
