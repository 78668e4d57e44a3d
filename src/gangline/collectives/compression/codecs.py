# SPDX-License-Identifier: Apache-2.0
"""Which codec a compression names, where one member's tensor becomes one message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gangline.collectives.compression.quantising import EightBit, Half, OneBit, TernGrad
from gangline.collectives.compression.sparse import SparseBinary, TopK
from gangline.spec.errors import UsageError
from gangline.spec.exchange import compression as kinds

if TYPE_CHECKING:
    import numpy as np

    from gangline.collectives.compression.codec import Codec
    from gangline.spec.exchange.compression import Compression

HALVES = {kinds.FP16: torch.float16, kinds.BF16: torch.bfloat16}


def codec_of(compression: Compression, *, generator: np.random.Generator) -> Codec:
    """The codec; `generator` is where a stochastic one draws from, each member from its own."""
    match compression.kind:
        case kinds.FP16 | kinds.BF16:
            return Half(HALVES[compression.kind])
        case kinds.EIGHT_BIT:
            return EightBit()
        case kinds.ONE_BIT:
            return OneBit()
        case kinds.TERNGRAD:
            return TernGrad(generator)
        case kinds.TOP_K:
            return TopK(compression.number)
        case kinds.SPARSE_BINARY:
            return SparseBinary(compression.number)
    raise UsageError(f"compression {compression} is no message of one member: it has no codec")
