# SPDX-License-Identifier: Apache-2.0
"""Whether a script ends because memory ran out, and how many samples its worker can hold then."""

from __future__ import annotations

import sys

import torch

_KEPT = 0.75
"""The part of the share that was too much which is tried next."""
_WORDS = ("can't allocate memory", "not enough memory", "out of memory")


def ending_error() -> BaseException | None:
    """The exception that this process ends with: being handled, or printed already."""
    return sys.exc_info()[1] or getattr(sys, "last_value", None)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an exception says that there is no memory left, here or in what it was raised from."""
    while error is not None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False


def lowered(share: int) -> int:
    """How many samples a worker may have that ran out of memory with so many."""
    return max(1, int(share * _KEPT))
