# SPDX-License-Identifier: Apache-2.0
"""Gradients that are pushed in fewer bytes, by the codecs of `collectives.compression`.

What a message leaves out is kept by who pushes, by parameter, and added to its next gradient. The
server keeps what it has decoded, and so does its copy, which is sent the same message.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gangline.collectives.compression.codecs import codec_of
from gangline.spec.errors import ExchangeError, MismatchError, UsageError
from gangline.spec.exchange.compression import Compression
from gangline.spec.exchange.compression_format import message_bytes

if TYPE_CHECKING:
    from gangline.collectives.compression.codec import Codec

CODED = "codec"
"""Names the codec in what travels."""


class _Left(NamedTuple):
    """What the message of a clock has left out, and what was left out before."""

    clock: int
    after: Tensor | None
    before: Tensor | None


class Encoder:
    """Shortens the gradients of one worker. A parameter's are encoded by one thread at a time."""

    def __init__(self, compression: Compression, *, seed: int) -> None:
        """Raises UsageError where the compression is no message of one member."""
        self.compression = compression
        self._codec = codec_of(compression, generator=np.random.default_rng(seed))
        self._drawing = threading.Lock()
        self._left: dict[int, _Left] = {}

    def encode(self, index: int, clock: int, gradient: Any) -> Any:
        """A gradient as it travels: as it is, where a message would not be shorter.

        One that is pushed again, with the same clock, is coded as if it had not been pushed before.
        """
        if not self._is_shorter(gradient):
            return gradient
        left = self._left.get(index)
        before = None if left is None else left.before if left.clock == clock else left.after
        wanted = gradient.detach().reshape(-1).to("cpu", torch.float32)
        if before is not None:
            wanted = wanted + before
        if not bool(torch.isfinite(wanted).all()):
            return gradient  # it is refused
        with self._drawing:
            body = self._codec.encode(wanted)
        if self._codec.keeps_residual:
            after = wanted - self._codec.decode(body, wanted.numel())
            self._left[index] = _Left(clock, after, before)
        return {CODED: str(self.compression), "body": torch.from_numpy(body)}

    def _is_shorter(self, gradient: Any) -> bool:
        if not isinstance(gradient, Tensor) or not gradient.is_floating_point():
            return False
        size = gradient.numel()
        plain = size * gradient.element_size()
        return size > 0 and message_bytes(self.compression, size) < plain


def decoded(given: dict[str, Any], parameter: Tensor, name: str) -> Tensor:
    """The gradient that a message stands for; a MismatchError where it is none for this parameter."""
    try:
        body = given["body"]
        if not isinstance(body, Tensor) or body.dtype != torch.uint8 or body.dim() != 1:
            raise ExchangeError("it is no row of bytes")
        flat = _codec(given[CODED]).decode(body.numpy(), parameter.numel())
    except (ExchangeError, UsageError, KeyError, TypeError, ValueError, IndexError) as error:
        raise MismatchError(
            f"the compressed push for {name} cannot be read: {error}. All workers must use the same "
            "version"
        ) from error
    return flat.to(parameter.dtype).reshape(parameter.shape)


def _codec(text: str) -> Codec:
    return codec_of(Compression.parse(text), generator=np.random.default_rng(0))
