# SPDX-License-Identifier: Apache-2.0
"""What each layer of a chain takes on this machine, measured with a few samples: nothing runs out yet.

Each layer is measured by itself, forward and backward, with 2 and with 4 samples: that gives the time
of a pass however small, and of one more sample. What autograd keeps is counted as it is kept. So what
fits is known before a whole batch, or the whole model, is tried.
"""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gangline.pipelining.chain import ChainLayer
from gangline.pipelining.filling import fill
from gangline.spec.errors import UnsupportedError
from gangline.spec.pipelines import Layer, Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FEW, MORE = 2, 4
"""BatchNorm cannot normalise one sample."""
_REPEATS = 3


class Measured:
    """What is known of a chain on this machine."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.forward: list[Pace] = []
        self.backward: list[Pace] = []
        self.shapes: list[tuple[int, ...]] = []
        """Of each layer's output, for one sample."""
        self.dtypes: list[torch.dtype] = []


def measure(
    chain: Sequence[ChainLayer],
    inputs: Callable[[int], Tensor],
    *,
    device: torch.device,
    ratio_of: Callable[[Tensor], float],
    speed: float = 1.0,
    seed: int = 0,
) -> Measured:
    """Measures all layers. `inputs` gives so many samples; `ratio_of` the optimizer's state of a
    parameter, in bytes per byte; `speed` is the fraction of this machine that is emulated."""
    measured = Measured()
    with torch.random.fork_rng():
        few, more = inputs(FEW).to(device), inputs(MORE).to(device)
        for number, layer in enumerate(chain):
            own = ChainLayer([(name, _copied(module)) for name, module in layer.parts])
            for _, module in own.parts:
                fill(module, device, seed=seed + number)
                module.train()
            few, more = _measure_layer(own, layer, few, more, measured, ratio_of, speed)
    return measured


def _copied(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module)


def _measure_layer(
    own: ChainLayer,
    layer: ChainLayer,
    few: Tensor,
    more: Tensor,
    measured: Measured,
    ratio_of: Callable[[Tensor], float],
    speed: float,
) -> tuple[Tensor, Tensor]:
    out, saved = _count_saved(own, few)
    small, large = _timed(own, few), _timed(own, more)
    after = own(more.clone()).detach()
    _check_samples(layer, out, after)
    sizes = sum(p.nbytes for p in layer.parameters().values())
    states = sum(p.nbytes * _states(p, ratio_of) for p in layer.parameters().values())
    measured.layers.append(
        Layer(
            name=layer.name,
            parameter_bytes=float(sizes),
            state_bytes=float(states + sum(b.nbytes for b in layer.buffers().values())),
            saved_bytes=saved / FEW,
            input_bytes=few.nbytes / FEW,
            output_bytes=out.nbytes / FEW,
        )
    )
    for paces, first, second in zip(
        (measured.forward, measured.backward), small, large, strict=True
    ):
        each = max(0.0, (second - first) / (MORE - FEW))
        each = min(each, second / MORE)
        paces.append(
            Pace(fixed_s=max(0.0, first - each * FEW) / speed, sample_s=max(each, 1e-12) / speed)
        )
    measured.shapes.append(tuple(out.shape[1:]))
    measured.dtypes.append(out.dtype)
    return out, after


def _states(parameter: Tensor, ratio_of: Callable[[Tensor], float]) -> float:
    """Bytes per byte of a parameter: itself, its gradient, and the optimizer's state."""
    return 2.0 + ratio_of(parameter) if parameter.requires_grad else 1.0


def _count_saved(layer: ChainLayer, x: Tensor) -> tuple[Tensor, int]:
    """The layer's output, and the bytes that its forward pass keeps beside parameters and buffers."""
    known = {_address(t) for t in (*layer.parameters().values(), *layer.buffers().values())}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        if _address(tensor) not in known:
            kept[_address(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = layer(_entry(layer, _leaf(x)))
    if not isinstance(out, Tensor):
        raise UnsupportedError(
            f"the model cannot be cut: the layer {layer.name!r} returns {type(out).__name__}, and "
            "stages hand on one tensor. Let it return one, or put it and the layer after it into one "
            "module"
        )
    return out.detach(), sum(kept.values())


def _timed(layer: ChainLayer, x: Tensor) -> tuple[float, float]:
    """Seconds of the fastest forward and backward pass of a few."""
    forward, backward = [], []
    for _ in range(_REPEATS):
        entry = _leaf(x)
        begun = _now(x.device)
        out = layer(_entry(layer, entry))
        passed = _now(x.device)
        if out.requires_grad:
            out.backward(torch.zeros_like(out))
        forward.append(passed - begun)
        backward.append(_now(x.device) - passed)
    return min(forward), min(backward)


def _check_samples(layer: ChainLayer, out: Tensor, after: Tensor) -> None:
    """Micro-batches are cut along the first dimension, and the rest of the shape must not change."""
    is_good = out.dim() > 0 and out.shape[0] == FEW and after.shape == (MORE, *out.shape[1:])
    if not is_good:
        raise UnsupportedError(
            f"the model cannot be cut: of {FEW} samples the layer {layer.name!r} makes a tensor of "
            f"shape {list(out.shape)}, and of {MORE} one of {list(after.shape)}. The first dimension "
            "must be that of the samples, and the others must stay the same"
        )


def _leaf(x: Tensor) -> Tensor:
    leaf = x.detach()
    return leaf.requires_grad_() if leaf.is_floating_point() else leaf


def _entry(layer: Any, leaf: Tensor) -> Tensor:
    """What a layer may overwrite, where it does so."""
    return leaf.clone() if layer.is_inplace() else leaf


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
