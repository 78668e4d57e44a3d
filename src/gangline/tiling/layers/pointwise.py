# SPDX-License-Identifier: Apache-2.0
"""What is computed place by place, and concatenation: neither needs a halo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gangline.tiling.layers.base import Layer, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gangline.tiling.geometry import Box, Shape


class Pointwise(Layer):
    """A function of tensors of one shape, place by place."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self._function = function

    def needs(self, box: Box, shapes: Sequence[Shape], shape: Shape) -> tuple[Box, ...]:
        return (box,) * len(shapes)

    def compute(self, inputs: Sequence[Tensor], part: Part) -> Tensor:
        return self._function(*inputs)


class Concatenation(Layer):
    """`torch.cat` along any dimension."""

    def __init__(self, dim: int) -> None:
        self._dim = dim

    def needs(self, box: Box, shapes: Sequence[Shape], shape: Shape) -> tuple[Box, ...]:
        start, stop = box[self._dim]
        asked, offset = [], 0
        for given in shapes:
            low, high = max(start - offset, 0), min(stop - offset, given[self._dim])
            span = (low, high) if low < high else (0, 0)
            asked.append((*box[: self._dim], span, *box[self._dim + 1 :]))
            offset += given[self._dim]
        return tuple(asked)

    def compute(self, inputs: Sequence[Tensor], part: Part) -> Tensor:
        return torch.cat(list(inputs), self._dim)
