# SPDX-License-Identifier: Apache-2.0
"""Keeps the models' buffers together: running statistics are averaged by share.

Constant buffers (masks, tables of positions) never travel: only what changed since the last exchange
does. Integer buffers count the same steps on all workers and are left alone.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

if TYPE_CHECKING:
    from collections.abc import Sequence


class Buffers:
    """The floating-point buffers of the models, and which of them have changed."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._watched: list[tuple[Tensor, Tensor]] = []
        seen: set[int] = set()
        for model in models:
            for module in model.modules():
                for buffer in module._buffers.values():
                    if buffer is None or not buffer.is_floating_point() or id(buffer) in seen:
                        continue
                    seen.add(id(buffer))
                    self._watched.append((buffer, _tell_tale(module, buffer)))
        self._versions = [tale._version for _, tale in self._watched]

    @property
    def all(self) -> list[Tensor]:
        return [buffer for buffer, _ in self._watched]

    def changed(self) -> bytes:
        """One byte per buffer: 1 where it changed since the last `settle`."""
        return bytes(
            tale._version != version
            for (_, tale), version in zip(self._watched, self._versions, strict=True)
        )

    def settle(self) -> None:
        """What the buffers hold now is the same on all workers."""
        self._versions = [tale._version for _, tale in self._watched]

    def collect(self, chosen: Sequence[bool | int], weight: float) -> Tensor:
        """The chosen buffers, weighted, in one flat tensor of double precision."""
        parts = [
            buffer.detach().reshape(-1).double().cpu() * weight
            for buffer, take in zip(self.all, chosen, strict=True)
            if take
        ]
        if weight == 0:  # a ghost's statistics may be anything, and 0 * inf is not 0
            parts = [torch.zeros_like(part) for part in parts]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def restore(self, chosen: Sequence[bool | int], flat: Tensor) -> None:
        """Writes the averages back. (`.data`: a graph that still needs the buffer stays valid.)"""
        start = 0
        for buffer, take in zip(self.all, chosen, strict=True):
            if take:
                values = flat[start : start + buffer.numel()].view_as(buffer)
                buffer.data.copy_(values)
                start += buffer.numel()


def checksum(flags: bytes) -> int:
    """A number that two workers share if, for all that matters, their flags are equal."""
    return zlib.crc32(flags)


def _tell_tale(module: nn.Module, buffer: Tensor) -> Tensor:
    """The tensor whose version shows that `buffer` changed.

    BatchNorm's kernels write the running statistics without raising their version, but they count
    the batches in a tensor that does.
    """
    if isinstance(module, _NormBase) and module.num_batches_tracked is not None:
        return module.num_batches_tracked
    return buffer
