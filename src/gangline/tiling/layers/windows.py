# SPDX-License-Identifier: Apache-2.0
"""Convolution and pooling: an output place is computed from a window of the input."""

from __future__ import annotations

import math
from abc import abstractmethod
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gangline.tiling.geometry import Box, Range, Shape, Window
from gangline.tiling.layers.base import Layer, Part, along, each

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_CONV: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_MAX: dict[int, Callable[..., Tensor]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


class Windowed(Layer):
    """A layer with a window for each dimension of space."""

    filling = 0.0
    """What the input is padded by."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self.windows = tuple(windows)

    def channels(self, span: Range) -> Range:
        """The input channels for a range of output channels."""
        return span

    def needs(self, box: Box, shapes: Sequence[Shape], shape: Shape) -> tuple[Box, ...]:
        spans = zip(self.windows, box[2:], shapes[0][2:], strict=True)
        space = (window.needs(span, length) for window, span, length in spans)
        return ((box[0], self.channels(box[1]), *space),)

    def compute(self, inputs: Sequence[Tensor], part: Part) -> Tensor:
        spans = zip(self.windows, part.box[2:], part.shapes[0][2:], strict=True)
        padding = [window.padding(span, length) for window, span, length in spans]
        return self.apply(self.pad(inputs[0], padding), padding, part.box[1])

    def pad(self, tensor: Tensor, padding: Sequence[tuple[int, int]]) -> Tensor:
        """The padding that this part sees at the borders of the uncut tensor."""
        flat = [places for pair in reversed(padding) for places in pair]
        return F.pad(tensor, flat, value=self.filling) if any(flat) else tensor

    @abstractmethod
    def apply(self, padded: Tensor, padding: Sequence[tuple[int, int]], channels: Range) -> Tensor:
        """The layer, without padding of its own, for these output channels."""


class Convolution(Windowed):
    """`nn.Conv1d`, `nn.Conv2d`, `nn.Conv3d` with padding by zeros."""

    def __init__(self, module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> None:
        self.module = module
        settings = zip(
            module.kernel_size, module.stride, _padding(module), module.dilation, strict=True
        )
        super().__init__(
            [Window(kernel, stride, *pad, dilation) for kernel, stride, pad, dilation in settings]
        )
        self._out = module.out_channels // module.groups
        self._in = module.in_channels // module.groups

    def work(self, shapes: Sequence[Shape]) -> float:
        return 2.0 * self._in * math.prod(self.module.kernel_size)

    def channels(self, span: Range) -> Range:
        if span[0] >= span[1]:
            return span
        return span[0] // self._out * self._in, -(-span[1] // self._out) * self._in

    def apply(self, padded: Tensor, padding: Sequence[tuple[int, int]], channels: Range) -> Tensor:
        first = self.channels(channels)[0]
        made = []
        for span in self._pieces(channels):
            start, stop = self.channels(span)
            made.append(
                _CONV[len(self.windows)](
                    along(padded, 1, (start - first, stop - first)),
                    along(self.module.weight, 0, span),
                    None if self.module.bias is None else along(self.module.bias, 0, span),
                    stride=self.module.stride,
                    dilation=self.module.dilation,
                    groups=(stop - start) // self._in,
                )
            )
        return made[0] if len(made) == 1 else torch.cat(made, 1)

    def _pieces(self, span: Range) -> list[Range]:
        """Output channels, so that each piece is of whole groups, or of a part of one group."""
        start, stop = span
        whole_from, whole_to = -(-start // self._out) * self._out, stop // self._out * self._out
        inner = [bound for bound in (whole_from, whole_to) if start < bound < stop]
        bounds = sorted({start, *inner, stop})
        return list(pairwise(bounds))


class MaxPool(Windowed):
    """`nn.MaxPool1d`, `nn.MaxPool2d`, `nn.MaxPool3d`."""

    filling = -math.inf

    def work(self, shapes: Sequence[Shape]) -> float:
        return float(math.prod(window.kernel for window in self.windows))

    def apply(self, padded: Tensor, padding: Sequence[tuple[int, int]], channels: Range) -> Tensor:
        return _MAX[len(self.windows)](
            padded,
            [window.kernel for window in self.windows],
            stride=[window.stride for window in self.windows],
            dilation=[window.dilation for window in self.windows],
        )


class AveragePool(Windowed):
    """`nn.AvgPool1d`, `nn.AvgPool2d`, `nn.AvgPool3d`."""

    def __init__(self, windows: Sequence[Window], *, counts_padding: bool) -> None:
        super().__init__(windows)
        self._counts_padding = counts_padding

    def work(self, shapes: Sequence[Shape]) -> float:
        return float(math.prod(window.kernel for window in self.windows))

    def apply(self, padded: Tensor, padding: Sequence[tuple[int, int]], channels: Range) -> Tensor:
        average = self._average(padded)
        if self._counts_padding:
            return average
        inner = [n - sum(pair) for n, pair in zip(padded.shape[2:], padding, strict=True)]
        return average / self._average(self.pad(padded.new_ones(1, 1, *inner), padding))

    def _average(self, padded: Tensor) -> Tensor:
        return _AVERAGE[len(self.windows)](
            padded,
            [window.kernel for window in self.windows],
            stride=[window.stride for window in self.windows],
        )


def pool_windows(module: Any, dims: int) -> list[Window]:
    """The windows of a pooling layer of torch."""
    kernel = each(module.kernel_size, dims)
    stride = each(module.kernel_size if module.stride is None else module.stride, dims)
    padding, dilation = each(module.padding, dims), each(getattr(module, "dilation", 1), dims)
    settings = zip(kernel, stride, padding, dilation, strict=True)
    return [Window(k, s, pad, pad, d) for k, s, pad, d in settings]


def _padding(module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> list[tuple[int, int]]:
    if module.padding == "valid":
        return [(0, 0)] * len(module.kernel_size)
    if module.padding == "same":
        reaches = zip(module.kernel_size, module.dilation, strict=True)
        totals = [dilation * (kernel - 1) for kernel, dilation in reaches]
        return [(total // 2, total - total // 2) for total in totals]
    return [(int(pad), int(pad)) for pad in module.padding]
