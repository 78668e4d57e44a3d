# SPDX-License-Identifier: Apache-2.0
"""A stage at work: forward and backward passes of micro-batches through the layers that it has.

Random numbers (dropout) are drawn by seed, step, first sample of the micro-batch and layer. So they are
the same wherever the layer is, and whoever computes a micro-batch again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch
from torch import Tensor

from gangline.spec.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gangline.pipelining.chain import ChainLayer


class Piece:
    """A micro-batch: which samples of the global batch it has, and how much its loss counts."""

    def __init__(
        self, *, step: int, number: int, start: int, stop: int, weight: float, counted: float
    ) -> None:
        self.step, self.number, self.start, self.stop = step, number, start, stop
        self.weight = weight
        """By which the loss is multiplied before it is differentiated."""
        self.counted = counted
        """By which it counts in the loss of the whole batch."""


class StageWork:
    """The layers of one stage, with what their forward passes have left."""

    def __init__(
        self,
        layers: Sequence[tuple[int, ChainLayer]],
        shapes: Sequence[tuple[int, ...]],
        *,
        device: torch.device,
        loss: Callable[[Tensor, Any], Tensor] | None,
        recompute: bool,
        stashes: bool,
        seed: int,
        speed: float,
    ) -> None:
        """`shapes` are those of all layers' outputs; `loss` is for the last stage alone.

        With `stashes` each micro-batch goes forward and backward by the parameters of its forward pass,
        whatever updates there are in between.
        """
        self._layers, self._shapes = layers, shapes
        self._is_inplace = layers[0][1].is_inplace()
        self._device, self._loss = device, loss
        self._recompute, self._seed, self._speed = recompute, seed, speed
        self._kept: dict[int, tuple[Tensor, Tensor | None, Any]] = {}
        self._stash: dict[int, dict[str, Tensor]] | None = {} if stashes else None
        """By micro-batch: the parameters of its forward pass."""
        self.total_loss = torch.zeros((), dtype=torch.float64)
        self.busy_s = 0.0

    def forward(self, piece: Piece, x: Tensor, target: Any = None) -> Tensor | None:
        """What the next stage is sent; None on the last stage, which adds up the loss."""
        begun = self._begin()
        leaf = x.to(self._device).detach()
        if leaf.is_floating_point():
            leaf.requires_grad_()
        if self._recompute:
            with torch.no_grad():
                out = self._run(leaf, piece)
                shown = self._end(out, target)
            self._kept[piece.number] = (leaf, None, target)
        else:
            out = self._run(leaf, piece)
            shown = self._end(out, target)
            self._kept[piece.number] = (leaf, shown, None)
        is_last = self._loss is not None
        if is_last:
            self.total_loss += shown.detach().to("cpu", torch.float64) * piece.counted
        sent = None if is_last else out.detach().cpu()
        self._charge(begun)
        return sent

    def backward(self, piece: Piece, gradient: Tensor | None) -> Tensor | None:
        """Adds to the parameters' gradients; returns what the stage before is sent, None if nothing."""
        begun = self._begin()
        leaf, shown, target = self._kept.pop(piece.number)
        counted: list[tuple[Tensor, Tensor]] = []
        if shown is None:  # running statistics have counted this micro-batch already
            counted = [(b, b.clone()) for _, one in self._layers for b in one.buffers().values()]
            shown = self._end(self._run(leaf, piece), target)
        if shown.requires_grad:
            own = torch.full_like(shown, piece.weight) if gradient is None else gradient
            torch.autograd.backward(shown, own.to(self._device))
        overwrite(counted)
        sent = None if leaf.grad is None else leaf.grad.cpu()
        if sent is None and leaf.is_floating_point():
            sent = torch.zeros_like(leaf, device="cpu")
        self._charge(begun)
        return sent

    def hand_over(self, piece: Piece) -> None:
        """Gives the parameters the gradient of this micro-batch, at those of its forward pass."""
        assert self._stash is not None
        values = self._stash.pop(piece.number)
        for _, layer in self._layers:
            for name, parameter in layer.parameters().items():
                parameter.grad = values[name].grad

    def forget(self) -> None:
        """Drops what a broken attempt has left."""
        self._kept.clear()
        if self._stash is not None:
            self._stash.clear()
        self.total_loss.zero_()

    def _run(self, leaf: Tensor, piece: Piece) -> Tensor:
        x = leaf.clone() if self._is_inplace else leaf
        values = None if self._stash is None else self._stashed(self._stash, piece.number)
        generator = _generator_of(self._device)
        before = generator.get_state()
        try:
            for index, layer in self._layers:
                place = b"%d %d %d %d" % (self._seed, piece.step, piece.start, index)
                generator.manual_seed(crc32(place))
                x = layer(x, values)
                self._check(layer, x, piece, self._shapes[index])
        finally:
            generator.set_state(before)
        return x

    def _stashed(self, stash: dict[int, dict[str, Tensor]], number: int) -> dict[str, Tensor]:
        if number not in stash:
            stash[number] = {
                name: parameter.detach().clone().requires_grad_(parameter.requires_grad)
                for _, layer in self._layers
                for name, parameter in layer.parameters().items()
            }
        return stash[number]

    def _end(self, out: Tensor, target: Any) -> Tensor:
        if self._loss is None:
            return out
        moved = target.to(self._device) if isinstance(target, Tensor) else target
        loss = self._loss(out, moved)
        if not isinstance(loss, Tensor) or loss.dim() > 0:
            kind = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise UsageError(
                "the loss must be a tensor with one number, a mean or a sum over the samples, not "
                f"{kind}"
            )
        return loss

    def _check(self, layer: ChainLayer, out: Tensor, piece: Piece, shape: tuple[int, ...]) -> None:
        if tuple(out.shape) != (piece.stop - piece.start, *shape):
            raise UnsupportedError(
                f"the layer {layer.name!r} has made a tensor of shape {list(out.shape)}, and before "
                f"that of {['samples', *shape]}: shapes must not change between micro-batches. Pad the "
                "samples to one size"
            )

    def _begin(self) -> tuple[float, float]:
        return time.perf_counter(), time.thread_time()

    def _charge(self, begun: tuple[float, float]) -> None:
        """Counts the time; a machine that is emulated slower takes what that one would take."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        if self._speed < 1:
            time.sleep((time.thread_time() - begun[1]) * (1 / self._speed - 1))
        self.busy_s += time.perf_counter() - begun[0]


def _generator_of(device: torch.device) -> torch.Generator:
    """What dropout on this device draws from. `torch.manual_seed` would seed all devices, at a cost."""
    if device.type != "cuda":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


def overwrite(values: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Gives buffers other values."""
    with torch.no_grad():
        for buffer, value in values:
            buffer.copy_(value)
