# SPDX-License-Identifier: Apache-2.0
"""Dense layers, cut by their output features; and flattening, which brings what they need together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from gangline.tiling.geometry import Box, Shape, volume, whole
from gangline.tiling.layers.base import Layer, Part, along

if TYPE_CHECKING:
    from collections.abc import Sequence


class Flatten(Layer):
    """Everything but the batch in one dimension. A worker needs all of its samples."""

    def needs(self, box: Box, shapes: Sequence[Shape], shape: Shape) -> tuple[Box, ...]:
        return ((box[0], *whole(shapes[0][1:])) if volume(box) else _nothing(shapes[0]),)

    def compute(self, inputs: Sequence[Tensor], part: Part) -> Tensor:
        return along(inputs[0].flatten(1), 1, part.box[1])


class Dense(Layer):
    """`nn.Linear`: each worker computes some of the output features, from all of the input's."""

    def __init__(self, module: nn.Linear) -> None:
        self._module = module

    def work(self, shapes: Sequence[Shape]) -> float:
        return 2.0 * self._module.in_features

    def needs(self, box: Box, shapes: Sequence[Shape], shape: Shape) -> tuple[Box, ...]:
        return ((box[0], (0, shapes[0][1])) if volume(box) else _nothing(shapes[0]),)

    def compute(self, inputs: Sequence[Tensor], part: Part) -> Tensor:
        bias = self._module.bias
        span = part.box[1]
        weight = along(self._module.weight, 0, span)
        return F.linear(inputs[0], weight, None if bias is None else along(bias, 0, span))


def _nothing(shape: Shape) -> Box:
    return tuple((0, 0) for _ in shape)
