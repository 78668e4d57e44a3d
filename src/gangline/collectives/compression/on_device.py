# SPDX-License-Identifier: Apache-2.0
"""Codecs that work where the gradient is: what leaves a GPU, and comes to it, is the short message.

Their messages are those of the codecs for host memory, and decode to the same bits: members with a
GPU and members without one exchange with each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gangline.collectives.compression.codec import check_size, joined
from gangline.collectives.compression.codecs import HALVES
from gangline.collectives.compression.quantising import LEVELS, EightBit, Half, check_ranges
from gangline.collectives.compression.sparse import TopK, index_type
from gangline.spec.exchange import compression as kinds
from gangline.spec.exchange.compression_format import CHUNK, num_chunks, num_kept

if TYPE_CHECKING:
    from gangline.collectives.compression.codec import Bytes, Codec
    from gangline.spec.exchange.compression import Compression


_KINDS_OF_DEVICES = ("cuda", "cpu")
"""Others need not have numbers of 64 bits."""


def device_codec_of(compression: Compression, device: torch.device) -> Codec | None:
    """The codec for tensors on a device; None where they must come to host memory first."""
    if device.type not in _KINDS_OF_DEVICES:
        return None
    match compression.kind:
        case kinds.FP16 | kinds.BF16:
            return DeviceHalf(HALVES[compression.kind], device)
        case kinds.EIGHT_BIT:
            return DeviceEightBit(device)
        case kinds.TOP_K:
            return DeviceTopK(compression.number, device)
    return None


class DeviceHalf(Half):
    """As `Half`."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(dtype)
        self._device = device

    def encode(self, flat: Tensor) -> Bytes:
        return _fetched(flat.to(self.dtype))

    def decode(self, message: Bytes, length: int) -> Tensor:
        check_size(message, self.message_bytes(length), what="half-precision")
        return _brought(message, self._device).view(self.dtype).float()


class DeviceEightBit(EightBit):
    """As `EightBit`, all chunks at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def encode(self, flat: Tensor) -> Bytes:
        ends, codes = [], []
        for part in _rows(flat):
            least, greatest = part.aminmax(dim=1)
            ends.append(torch.stack([least, greatest], dim=1))
            step, low = _levels(ends[-1])
            level = torch.round(part / step[:, None]) - low[:, None]
            level = torch.where(step[:, None] > 0, level, 0).clamp_(0, LEVELS)
            codes.append(level.to(torch.uint8).reshape(-1))
        parts = [*(one.reshape(-1).view(torch.uint8) for one in ends), *codes]
        return _fetched(torch.cat(parts))

    def decode(self, message: Bytes, length: int) -> Tensor:
        check_size(message, self.message_bytes(length), what="8-bit")
        split = 8 * num_chunks(length)
        check_ranges(message[:split].view(np.float32).reshape(-1, 2))
        there = _brought(message, self._device)
        ends, parts = there[:split].view(torch.float32).view(-1, 2), []
        for given in _rows(there[split:]):
            own, ends = ends[: len(given)], ends[len(given) :]
            step, low = _levels(own)
            values = (given + low[:, None]) * step[:, None]
            values = torch.clamp(values, own[:, :1].double(), own[:, 1:].double())
            parts.append(values.float().reshape(-1))
        return torch.cat(parts)


class DeviceTopK(TopK):
    """As `TopK`."""

    def __init__(self, fraction: float, device: torch.device) -> None:
        super().__init__(fraction)
        self._device = device

    def encode(self, flat: Tensor) -> Bytes:
        count = num_kept(self._fraction, flat.numel())
        chosen = torch.topk(flat.abs(), count, sorted=False).indices
        positions = _fetched(chosen).view(np.int64).astype(index_type(flat.numel()))
        return joined([_fetched(flat[chosen]), positions])

    def decode(self, message: Bytes, length: int) -> Tensor:
        values, positions = self.split(message, length)
        out = torch.zeros(length, device=self._device)
        chosen = _brought(positions.astype(np.int64), self._device).view(torch.int64)
        out[chosen] = _brought(values, self._device).view(torch.float32)
        return out


def _rows(flat: Tensor) -> list[Tensor]:
    """The whole chunks as rows, and the rest as one row; what there is of them."""
    whole = flat.numel() // CHUNK * CHUNK
    parts = [flat[:whole].view(-1, CHUNK), flat[whole:].view(1, -1)]
    return [part for part in parts if part.numel()]


def _levels(ends: Tensor) -> tuple[Tensor, Tensor]:
    """The step of each chunk and the number of its lowest level; a step of 0 where all are equal."""
    least, greatest = ends[:, 0].double(), ends[:, 1].double()
    step = (greatest - least) / LEVELS
    return step, torch.where(step > 0, torch.round(greatest / step) - LEVELS, 0)


def _fetched(tensor: Tensor) -> Bytes:
    """The tensor's bytes in host memory."""
    host = tensor.reshape(-1).view(torch.uint8).to("cpu", non_blocking=tensor.is_cuda)
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
    array: Bytes = host.numpy()
    return array


def _brought(array: np.typing.NDArray[np.generic], device: torch.device) -> Tensor:
    """The array's bytes on the device."""
    return torch.from_numpy(array.view(np.uint8).copy()).to(device)
