# SPDX-License-Identifier: Apache-2.0
"""Codecs that send few of the elements: the largest ones, or one mean and where it belongs."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gangline.collectives.compression import golomb
from gangline.collectives.compression.codec import Bytes, Floats, check_size, joined
from gangline.spec.errors import ExchangeError
from gangline.spec.exchange.compression_format import num_kept, remainder_bits

_SPARSE_HEAD = struct.Struct("<fI")


class TopK:
    """The elements of the greatest magnitude, each with its position."""

    keeps_residual = True

    def __init__(self, fraction: float) -> None:
        self._fraction = fraction

    def message_bytes(self, length: int) -> int:
        return num_kept(self._fraction, length) * (4 + index_type(length).itemsize)

    def encode(self, flat: Tensor) -> Bytes:
        count = num_kept(self._fraction, flat.numel())
        chosen = torch.topk(flat.abs(), count, sorted=False).indices.numpy()
        return joined([flat.numpy()[chosen], chosen.astype(index_type(flat.numel()))])

    def decode(self, message: Bytes, length: int) -> Tensor:
        values, indices = self.split(message, length)
        out = np.zeros(length, dtype=np.float32)
        out[indices] = values
        return torch.from_numpy(out)

    def split(self, message: Bytes, length: int) -> tuple[Floats, npt.NDArray[np.integer]]:
        """The values that a message holds, and where they belong."""
        check_size(message, self.message_bytes(length), what="top-k")
        count = num_kept(self._fraction, length)
        values = message[: 4 * count].view(np.float32)
        indices = message[4 * count :].view(index_type(length))
        if count and (indices.min() < 0 or indices.max() >= length):
            raise ExchangeError(f"a corrupt top-k message: a position outside of {length} elements")
        return values, indices


class SparseBinary:
    """The largest elements of one sign, all as their mean: one number, and where it belongs.

    Of the largest positive elements and the largest negative ones, each at most the fraction of all,
    the side with the greater mean magnitude is sent.
    """

    keeps_residual = True

    def __init__(self, fraction: float) -> None:
        self._fraction = fraction
        self._bits = remainder_bits(fraction)

    def message_bytes(self, length: int) -> int | None:
        return None

    def encode(self, flat: Tensor) -> Bytes:
        count = num_kept(self._fraction, flat.numel())
        sides = [_largest(flat, count), _largest(-flat, count)]
        (mean, positions), sign = max(zip(sides, (1, -1), strict=True), key=lambda side: side[0][0])
        head = np.frombuffer(_SPARSE_HEAD.pack(sign * mean, len(positions)), dtype=np.uint8)
        return np.concatenate([head, golomb.encode(positions, bits=self._bits)])

    def decode(self, message: Bytes, length: int) -> Tensor:
        if message.size < _SPARSE_HEAD.size:
            check_size(message, _SPARSE_HEAD.size, what="sparse binary")
        mean, count = _SPARSE_HEAD.unpack(message[: _SPARSE_HEAD.size].tobytes())
        code = message[_SPARSE_HEAD.size :]
        out = np.zeros(length, dtype=np.float32)
        out[golomb.decode(code, count=count, bits=self._bits, length=length)] = mean
        return torch.from_numpy(out)


def _largest(flat: Tensor, count: int) -> tuple[float, golomb.Positions]:
    """The mean of the largest elements, of those above 0, and where they are."""
    values, indices = torch.topk(flat, count, sorted=False)
    chosen = values > 0
    if not chosen.any():
        return 0.0, np.empty(0, dtype=np.int64)
    positions: golomb.Positions = indices[chosen].sort().values.numpy()
    return float(values[chosen].double().mean()), positions


def index_type(length: int) -> np.dtype[Any]:
    """How positions in a tensor of so many elements are sent."""
    return np.dtype(np.int32 if length < 1 << 31 else np.int64)
