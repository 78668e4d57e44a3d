# SPDX-License-Identifier: Apache-2.0
"""Codecs that keep every element, in fewer bits: half precision, 8 bits, 2 bits, 1 bit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gangline.collectives.compression.codec import (
    Bytes,
    Floats,
    check_size,
    joined,
    rows,
)
from gangline.spec.errors import ExchangeError
from gangline.spec.exchange.compression_format import num_chunks

LEVELS = 255
"""The greatest code of 8 bits."""
_CLIP = 2.5


class Half:
    """16 bits per element. What is too large for fp16 becomes infinite, as in torch."""

    keeps_residual = False

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def message_bytes(self, length: int) -> int:
        return 2 * length

    def encode(self, flat: Tensor) -> Bytes:
        narrow: Bytes = flat.to(self.dtype).view(torch.uint8).numpy()
        return narrow

    def decode(self, message: Bytes, length: int) -> Tensor:
        check_size(message, self.message_bytes(length), what="half-precision")
        return torch.from_numpy(message.copy()).view(self.dtype).float()


class EightBit:
    """One of 256 levels between the least and the greatest element of the chunk.

        step = (max − min)/255      low = rint(max/step) − 255
        code = clamp(rint(x/step) − low, 0, 255)      decoded = (code + low)·step

    Zero is a level, so what is zero stays zero where the chunk has both signs. Rounding may put the
    ends one level outside of 0 … 255; they are clamped, on both sides. The error is at most half a
    step. The arithmetic is float64: it neither overflows nor loses levels where all elements of a
    chunk are alike.
    """

    keeps_residual = True

    def message_bytes(self, length: int) -> int:
        return 8 * num_chunks(length) + length

    def encode(self, flat: Tensor) -> Bytes:
        ranges, codes = [], []
        for part in rows(flat.numpy()):
            ends = np.stack([part.min(axis=1), part.max(axis=1)], axis=1)
            step, low = _levels(ends)
            with np.errstate(divide="ignore", invalid="ignore"):
                level = np.rint(part / step[:, None]) - low[:, None]
            codes.append(_as_codes(np.where(step[:, None] > 0, level, 0)))
            ranges.append(ends)
        return joined([*ranges, *codes])

    def decode(self, message: Bytes, length: int) -> Tensor:
        check_size(message, self.message_bytes(length), what="8-bit")
        split = 8 * num_chunks(length)
        ranges = message[:split].view(np.float32).reshape(-1, 2)
        check_ranges(ranges)
        out = np.empty(length, dtype=np.float32)
        start, codes = 0, message[split:]
        for part, given in zip(rows(out), rows(codes), strict=True):
            ends = ranges[start : start + len(part)]
            step, low = _levels(ends)
            values = (given + low[:, None]) * step[:, None]
            part[:] = np.clip(values, ends[:, :1], ends[:, 1:])
            start += len(part)
        return torch.from_numpy(out)


class OneBit:
    """The sign; a chunk's positive elements become their mean, and so do its negative ones."""

    keeps_residual = True

    def message_bytes(self, length: int) -> int:
        return 8 * num_chunks(length) + -(-length // 8)

    def encode(self, flat: Tensor) -> Bytes:
        array = flat.numpy()
        means = [_means(part) for part in rows(array)]
        return joined([*means, np.packbits(array >= 0)])

    def decode(self, message: Bytes, length: int) -> Tensor:
        check_size(message, self.message_bytes(length), what="1-bit")
        split = 8 * num_chunks(length)
        means = message[:split].view(np.float32).reshape(-1, 2)
        signs = np.unpackbits(message[split:], count=length)
        out = np.empty(length, dtype=np.float32)
        start = 0
        for part, given in zip(rows(out), rows(signs), strict=True):
            mean = means[start : start + len(part)]
            part[:] = np.where(given == 1, mean[:, :1], mean[:, 1:])
            start += len(part)
        return torch.from_numpy(out)


class TernGrad:
    """−s, 0 or s, drawn so that the mean is right: s with probability |x|/s.

    s is the greatest element of the chunk after all were clipped at 2.5 σ, where σ² is the mean
    square: gradients are taken to be around zero. Being right on average, it keeps no residual.
    """

    keeps_residual = False

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def message_bytes(self, length: int) -> int:
        return 4 * num_chunks(length) + 2 * -(-length // 8)

    def encode(self, flat: Tensor) -> Bytes:
        scales, drawn, negative = [], [], []
        for part in rows(flat.numpy()):
            sigma = np.sqrt(np.square(part, dtype=np.float64).mean(axis=1, keepdims=True))
            with np.errstate(over="ignore"):
                limit = (_CLIP * sigma).astype(np.float32)
            magnitude = np.minimum(np.abs(part), limit)
            scale = magnitude.max(axis=1, keepdims=True)
            chance = self._generator.random(part.shape, dtype=np.float32)
            scales.append(scale)
            drawn.append((chance * scale < magnitude).reshape(-1))
            negative.append((part < 0).reshape(-1))
        return joined(
            [*scales, np.packbits(np.concatenate(drawn)), np.packbits(np.concatenate(negative))]
        )

    def decode(self, message: Bytes, length: int) -> Tensor:
        check_size(message, self.message_bytes(length), what="TernGrad")
        split, half = 4 * num_chunks(length), -(-length // 8)
        scales = message[:split].view(np.float32)
        drawn = np.unpackbits(message[split : split + half], count=length)
        negative = np.unpackbits(message[split + half :], count=length)
        out = drawn * (1 - 2 * negative.astype(np.float32))
        start = 0
        for part in rows(out):
            part *= scales[start : start + len(part), None]
            start += len(part)
        return torch.from_numpy(out)


def check_ranges(ranges: Floats) -> None:
    """Refuses an 8-bit message whose chunks have no range."""
    if not np.isfinite(ranges).all() or (ranges[:, 0] > ranges[:, 1]).any():
        raise ExchangeError("a corrupt 8-bit message: the range of a chunk is none")


def _levels(ends: Floats) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The step of each chunk and the number of its lowest level; a step of 0 where all are equal."""
    least, greatest = ends[:, 0].astype(np.float64), ends[:, 1].astype(np.float64)
    step = (greatest - least) / LEVELS
    with np.errstate(divide="ignore", invalid="ignore"):
        low = np.where(step > 0, np.rint(greatest / step) - LEVELS, 0)
    return step, low


def _as_codes(levels: npt.NDArray[np.float64]) -> Bytes:
    return np.clip(levels, 0, LEVELS).astype(np.uint8)


def _means(part: Floats) -> Floats:
    """The mean of the elements from 0 on, and of those below, by chunk; 0 where there is none."""
    above = np.count_nonzero(part >= 0, axis=1)
    counts = np.stack([above, part.shape[1] - above], axis=1)
    sides = (np.maximum(part, 0), np.minimum(part, 0))
    totals = np.stack([side.sum(axis=1, dtype=np.float64) for side in sides], axis=1)
    means: Floats = (totals / np.maximum(counts, 1)).astype(np.float32)
    return means
