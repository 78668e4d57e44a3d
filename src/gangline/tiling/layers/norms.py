# SPDX-License-Identifier: Apache-2.0
"""Layers that need sums over all tiles: normalisation, and the average over all space.

The sums are made for each sample and channel; what a worker does not own is zero in its summands.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor

from gangline.tiling.exchange import Peers, add_up
from gangline.tiling.geometry import Box, Shape, inside, volume
from gangline.tiling.layers.base import Layer, Part, along

if TYPE_CHECKING:
    from collections.abc import Sequence


class Normalisation(Layer):
    """BatchNorm, InstanceNorm and GroupNorm: the mean and variance are those of the uncut tensor."""

    meets = True

    def __init__(self, module: Any, *, groups: int | None) -> None:
        """`groups`: how many groups of channels have statistics for each sample; None: BatchNorm."""
        self.module = module
        self._groups = groups

    def work(self, shapes: Sequence[Shape]) -> float:
        return 6.0

    def needs(self, box: Box, shapes: Sequence[Shape], shape: Shape) -> tuple[Box, ...]:
        return (box,)

    def compute(self, inputs: Sequence[Tensor], part: Part) -> Tensor:
        batch = self._groups is None
        if batch and not self.module.training and self.module.running_mean is not None:
            mean, variance = self.module.running_mean, self.module.running_var
            return self._normalised(inputs[0], mean[None], variance[None], part)
        mean = self._mean(inputs[0], part)
        centred = inputs[0] - _placed(mean, part)
        variance = self._mean(centred.square(), part)
        if batch:
            self._remember(mean.detach()[0], variance.detach()[0], part)
        return self._scaled(centred * (_placed(variance, part) + self._eps).rsqrt(), part)

    @property
    def _eps(self) -> float:
        return float(self.module.eps)

    def _mean(self, tensor: Tensor, part: Part) -> Tensor:
        """The mean over what is normalised together, for each channel and sample (or all samples)."""
        total = _sum_space(tensor, part.box, part.owned, part.shape, part.peers)
        samples, channels = part.shape[:2]
        places = math.prod(part.shape[2:])
        if self._groups is None:
            return total.sum(0, keepdim=True) / (samples * places)
        each = channels // self._groups
        mean = total.view(samples, self._groups, each).sum(2, keepdim=True) / (each * places)
        return mean.expand(samples, self._groups, each).reshape(samples, channels)

    def _normalised(self, tensor: Tensor, mean: Tensor, variance: Tensor, part: Part) -> Tensor:
        scale = (_placed(variance, part) + self._eps).rsqrt()
        return self._scaled((tensor - _placed(mean, part)) * scale, part)

    def _scaled(self, tensor: Tensor, part: Part) -> Tensor:
        weight, bias = getattr(self.module, "weight", None), getattr(self.module, "bias", None)
        if weight is not None:
            tensor = tensor * _placed(weight[None], part)
        return tensor if bias is None else tensor + _placed(bias[None], part)

    def _remember(self, mean: Tensor, variance: Tensor, part: Part) -> None:
        """The running statistics, as torch keeps them; all workers have the same."""
        module = self.module
        if not module.training or module.running_mean is None:
            return
        count = part.shape[0] * math.prod(part.shape[2:])
        module.num_batches_tracked += 1
        rate = module.momentum
        if rate is None:
            rate = 1.0 / float(module.num_batches_tracked)
        module.running_mean.lerp_(mean, rate)
        module.running_var.lerp_(variance * (count / max(1, count - 1)), rate)


class AverageOfAll(Layer):
    """`nn.AdaptiveAvgPool…(1)`: each worker adds up its own tile, and only sums are exchanged."""

    meets = True
    uses_own = True

    def needs(self, box: Box, shapes: Sequence[Shape], shape: Shape) -> tuple[Box, ...]:
        raise AssertionError("it uses what each worker owns of the input")

    def compute(self, inputs: Sequence[Tensor], part: Part) -> Tensor:
        own, shape = part.needs[0], part.shapes[0]
        total = _sum_space(inputs[0], own, own, shape, part.peers)
        mean = total / math.prod(shape[2:])
        return mean.view(part.shape)[tuple(slice(*span) for span in part.box)]


def _sum_space(tensor: Tensor, box: Box, owned: Box, shape: Shape, peers: Peers) -> Tensor:
    """The sum over all space for each sample and channel of the uncut tensor, the same everywhere.

    The tensor holds the box, of which this worker contributes what it owns.
    """
    if volume(owned):
        own = tensor[inside(owned, box)].flatten(2).sum(2)
        (first, stop), (low, high) = owned[:2]
        return add_up(F.pad(own, (low, shape[1] - high, first, shape[0] - stop)), peers)
    nothing = tensor.flatten()[:0].sum()  # also its gradient is exchanged, as on the other workers
    return add_up(nothing.expand(shape[:2]), peers)


def _placed(values: Tensor, part: Part) -> Tensor:
    """Values for each channel (and sample) of the uncut tensor: those of this part, to broadcast."""
    rows = values if len(values) == 1 else along(values, 0, part.box[0])
    own = along(rows, 1, part.box[1])
    return own.reshape(*own.shape, *(1 for _ in part.shape[2:]))
