# SPDX-License-Identifier: Apache-2.0
"""From the layers of torch to those that can be tiled; what is in the way is refused by name."""

from __future__ import annotations

import operator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gangline.spec.errors import UnsupportedError
from gangline.tiling.geometry import Shape, Window
from gangline.tiling.layers.dense import Dense, Flatten
from gangline.tiling.layers.norms import AverageOfAll, Normalisation
from gangline.tiling.layers.pointwise import Pointwise
from gangline.tiling.layers.resample import Resample, whole_factors
from gangline.tiling.layers.windows import AveragePool, Convolution, MaxPool, pool_windows

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.tiling.layers.base import Layer

POINTWISE_MODULES = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid,
    nn.Tanh, nn.Softplus, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Identity,
)  # fmt: skip
POINTWISE_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    F.relu, F.relu6, F.leaky_relu, F.elu, F.gelu, F.silu, F.mish, F.softplus, F.hardswish,
    torch.relu, torch.sigmoid, torch.tanh, torch.add, torch.sub, torch.mul,
    operator.add, operator.sub, operator.mul, operator.truediv, operator.neg,
    operator.iadd, operator.isub, operator.imul,
)  # fmt: skip
POINTWISE_METHODS = ("relu", "sigmoid", "tanh", "add", "sub", "mul")
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
_AVERAGE_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_ADAPTIVE_AVERAGES = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
_ADAPTIVE_MAXIMA = (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


def layer_of(module: nn.Module, where: str, given: Shape, made: Shape) -> Layer:
    """The layer for a module, whose uncut input and output have these shapes."""
    if isinstance(module, POINTWISE_MODULES):
        return Pointwise(partial(_out_of_place, module))
    if isinstance(module, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
        return Pointwise(partial(_without_dropout, module, where))
    if (
        isinstance(module, nn.Flatten)
        and module.start_dim == 1
        and module.end_dim in (-1, len(given) - 1)
    ):
        return Flatten()
    if isinstance(module, nn.Linear) and len(given) == 2:
        return Dense(module)
    if isinstance(module, nn.Upsample):
        return resample(where, given, made, _interpolation(module))
    if len(given) > 2:
        return _of_space(module, where, given, made)
    raise refused(where, type(module).__name__, f"for an input of shape {given}")


def _of_space(module: nn.Module, where: str, given: Shape, made: Shape) -> Layer:
    """A layer whose input has space."""
    dims, name = len(given) - 2, type(module).__name__
    if isinstance(module, _CONVOLUTIONS):
        if module.padding_mode != "zeros":
            raise refused(where, name, f"with padding_mode={module.padding_mode!r}")
        return Convolution(module)
    if isinstance(module, _MAX_POOLS) and not module.return_indices:
        return MaxPool(pool_windows(module, dims))
    if isinstance(module, _AVERAGE_POOLS):
        if module.ceil_mode or getattr(module, "divisor_override", None):
            raise refused(where, name, "with ceil_mode or divisor_override")
        return AveragePool(pool_windows(module, dims), counts_padding=module.count_include_pad)
    if isinstance(module, _ADAPTIVE_AVERAGES):
        return adaptive_average(where, given, made)
    if isinstance(module, _ADAPTIVE_MAXIMA) and not module.return_indices:
        return MaxPool(_dividing(where, name, given, made))
    if isinstance(module, _BATCH_NORMS):
        return Normalisation(module, groups=None)
    if isinstance(module, _INSTANCE_NORMS) and not module.track_running_stats:
        return Normalisation(module, groups=given[1])
    if isinstance(module, nn.GroupNorm):
        return Normalisation(module, groups=module.num_groups)
    raise refused(where, name)


def adaptive_average(where: str, given: Shape, made: Shape) -> Layer:
    """The average over all space, or over equal windows."""
    if all(length == 1 for length in made[2:]):
        return AverageOfAll()
    return AveragePool(_dividing(where, "adaptive pooling", given, made), counts_padding=True)


def resample(where: str, given: Shape, made: Shape, options: dict[str, Any]) -> Layer:
    """Upsampling by what `F.interpolate` was called with."""
    mode, factor = options.get("mode", "nearest"), options.get("scale_factor")
    if options.get("antialias") or mode not in ("nearest", "linear", "bilinear", "trilinear"):
        raise refused(where, "upsampling", f"with mode={mode!r}, or antialias")
    if mode == "nearest" and not whole_factors(given[2:], made[2:]):
        raise refused(
            where,
            "upsampling",
            f"to the nearest, from {given[2:]} to {made[2:]}: only by whole factors",
        )
    factors: list[float] | None = None
    if factor is not None and not options.get("recompute_scale_factor"):
        is_one = isinstance(factor, int | float)
        factors = [float(factor)] * (len(given) - 2) if is_one else [float(one) for one in factor]
    return Resample(
        is_linear=mode != "nearest",
        aligns_corners=bool(options.get("align_corners")),
        factors=factors,
    )


def refused(where: str, what: str, how: str = "") -> UnsupportedError:
    """The error that names the layer in the way."""
    return UnsupportedError(
        f"{where} ({' '.join(filter(None, (what, how)))}) cannot be cut into tiles. To do: replace it "
        "by a layer that can (docs/tiles.md lists them), or tile the part of the model before it"
    )


def _dividing(where: str, what: str, given: Shape, made: Shape) -> list[Window]:
    lengths = list(zip(given[2:], made[2:], strict=True))
    if any(length % places for length, places in lengths):
        raise refused(where, what, f"from {given[2:]} to {made[2:]}: windows of unequal size")
    return [Window(length // places, length // places) for length, places in lengths]


def _interpolation(module: nn.Upsample) -> dict[str, Any]:
    names = ("mode", "scale_factor", "align_corners", "recompute_scale_factor")
    return {name: getattr(module, name) for name in names}


def _out_of_place(module: nn.Module, tensor: Tensor) -> Tensor:
    """An activation: what it is given may be needed again, so it is not overwritten."""
    if getattr(module, "inplace", False):
        tensor = tensor.clone()
    result: Tensor = module(tensor)
    return result


def _without_dropout(module: Any, where: str, tensor: Tensor) -> Tensor:
    if module.training and module.p > 0:
        raise refused(where, type(module).__name__, "in training: tiles would draw unlike masks")
    return tensor
