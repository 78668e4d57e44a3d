# SPDX-License-Identifier: Apache-2.0
"""BatchNorm over samples that lie on several workers: what each adds, and what follows from the sum.

For each channel of an input x, a worker brings its number of values n, their sum and their sum of
squares. From the totals over all workers follow the mean and the variance by which everybody
normalises. Sums travel in double precision: the squares are made from a mean and deviations that were
computed first, and the cancellation in `total squares − n · mean²` costs (mean/deviation)² · 1e-16.

In the backward pass, with g the gradient of the output, x̂ the normalised input and N values in all,

    dx = weight / deviation · (g − Σg/N − x̂ · Σ(g·x̂)/N)

where the sums go over all workers. Each worker differentiates its own loss, and its gradients are
multiplied by its part of the global batch when they are exchanged. So here each adds part · Σg to the
sums, and divides what comes back by its part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn.modules.batchnorm import _BatchNorm


class Sums(Protocol):
    """Adds up over the workers what the layers bring, in the forward and in the backward pass."""

    def part(self) -> float:
        """How much this worker's gradients count; 0 where its samples count nothing."""
        ...

    @property
    def is_void(self) -> bool:
        """Whether somebody was lost: then a sum is this worker's own part, and counts nothing."""
        ...

    def add(self, own: Tensor, *, is_backward: bool) -> Tensor:
        """The sum over all workers of a tensor of double precision in main memory."""
        ...


class Moments(NamedTuple):
    """What all values of each channel are like."""

    number: float
    """How many values there are."""
    mean: Tensor
    variance: Tensor
    """The mean of the squared deviations."""


def normalise(module: _BatchNorm, x: Tensor, sums: Sums) -> Tensor:
    """What the layer makes of `x` in training, by the statistics of all workers' samples."""
    counts = sums.part() != 0
    with torch.no_grad():
        moments = total_moments(x, counts=counts, add=lambda own: sums.add(own, is_backward=False))
        if moments.number > 0 and not sums.is_void:
            check_count(moments.number, x)
            track(module, moments)
        else:  # nobody's samples count, or somebody was lost: no gradient will count, either
            moments = total_moments(x, counts=True, add=lambda own: own)
        deviation = (moments.variance + module.eps).sqrt_()
    y: Tensor = _Normalise.apply(  # type: ignore[no-untyped-call]
        x, module.weight, module.bias, moments.mean, deviation, moments.number, sums, counts
    )
    return y


def total_moments(x: Tensor, *, counts: bool, add: Callable[[Tensor], Tensor]) -> Moments:
    """The moments of all workers' values; this worker's are left out unless it `counts`."""
    channels = x.size(1)
    own = torch.zeros(1 + 2 * channels, dtype=torch.float64)
    if counts and x.numel():
        precise = x.to(_precision(x))
        dims = _all_but_channels(x)
        mean = precise.mean(dims)
        squares = (precise - _along(mean, x)).square_().sum(dims).to("cpu", torch.float64)
        number = x.numel() // channels
        centre = mean.to("cpu", torch.float64)
        own[0] = number
        own[1 : 1 + channels] = centre * number
        own[1 + channels :] = squares + centre * centre * number
    total = add(own)
    count = float(total[0])
    centre = total[1 : 1 + channels] / max(count, 1.0)
    variance = (total[1 + channels :] / max(count, 1.0) - centre * centre).clamp_(min=0.0)
    precision = _precision(x)
    return Moments(count, centre.to(x.device, precision), variance.to(x.device, precision))


def check_count(count: float, x: Tensor) -> None:
    """Raises torch's own error where one value cannot be normalised."""
    if count <= 1:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {x.size()} on "
            "this worker, and no sample on the others"
        )


def track(module: _BatchNorm, moments: Moments) -> None:
    """Moves the running statistics, as the layer itself would for a batch of all samples."""
    if not module.track_running_stats:
        return
    factor = 0.0 if module.momentum is None else module.momentum
    if module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
        if module.momentum is None:
            factor = 1.0 / float(module.num_batches_tracked)
    if module.running_mean is not None:
        module.running_mean.lerp_(moments.mean.to(module.running_mean.dtype), factor)
    if module.running_var is not None:
        unbiased = moments.variance * (moments.number / (moments.number - 1))
        module.running_var.lerp_(unbiased.to(module.running_var.dtype), factor)


class _Normalise(torch.autograd.Function):
    """weight · (x − mean) / deviation + bias, where mean and deviation depend on all workers' x."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        deviation: Tensor,
        count: float,
        sums: Sums,
        counts: bool,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, deviation)
        ctx.count, ctx.sums, ctx.counts = count, sums, counts
        scale = 1 / deviation if weight is None else weight / deviation
        y = (x.to(mean.dtype) - _along(mean, x)).mul_(_along(scale, x))
        if bias is not None:
            y = y.add_(_along(bias, x))
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, deviation = ctx.saved_tensors
        dims = _all_but_channels(x)
        precise = gradient.to(mean.dtype)
        normalised = (x.to(mean.dtype) - _along(mean, x)).div_(_along(deviation, x))
        sum_g = precise.sum(dims)
        sum_gx = (precise * normalised).sum(dims)
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        dx = None
        if needs_x:
            part = ctx.sums.part() if ctx.counts else 0.0
            own = torch.cat([sum_g, sum_gx]).to("cpu", torch.float64)
            own = own * part if part else torch.zeros_like(own)  # 0 * inf is not 0
            total = ctx.sums.add(own, is_backward=True)
            if part and ctx.count:
                total = (total / (part * ctx.count)).to(x.device, mean.dtype)
                mean_g, mean_gx = total.chunk(2)
                scale = 1 / deviation if weight is None else weight / deviation
                dx = precise - _along(mean_g, x)
                dx = dx.sub_(normalised.mul_(_along(mean_gx, x))).mul_(_along(scale, x))
                dx = dx.to(x.dtype)
            else:
                dx = torch.zeros_like(x)
        return (
            dx,
            sum_gx.to(weight.dtype) if needs_weight else None,
            sum_g.to(gradient.dtype if weight is None else weight.dtype) if needs_bias else None,
            *(None,) * 5,
        )


def _all_but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _along(values: Tensor, x: Tensor) -> Tensor:
    """One value per channel, in a shape that goes with x."""
    return values.view(1, -1, *(1,) * (x.dim() - 2))


def _precision(x: Tensor) -> torch.dtype:
    """Statistics of half precision are computed in single precision, as torch does it."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
