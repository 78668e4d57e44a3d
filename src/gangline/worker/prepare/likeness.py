# SPDX-License-Identifier: Apache-2.0
"""Some samples of a data set as a short text, the same on every machine that has the same data.

Numbers that were computed may differ in their last bits between processors, so of a tensor of them
only its size and two figures count, to two digits. Random numbers that a sample draws are the same
everywhere, and the script's own go on as if nothing had been drawn.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import random
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_SEED = 20200101
_MAX_DEPTH = 8


def sample_digest(data_set: Any, length: int, count: int) -> str:
    """A hash of some samples; empty where they cannot be compared."""
    if count < 1 or length < 1:
        return ""
    indices = sorted({number * (length - 1) // max(1, count - 1) for number in range(count)})
    try:
        # What a data set opens when it is first asked must not be passed on to forked processes.
        asked = copy.copy(data_set)
        first, again = (_digest(asked, indices) for _ in range(2))
    except Exception:  # whatever it is of: training will tell, if it matters there
        return ""
    return first if first == again else ""  # else they are drawn anew each time


def _digest(data_set: Any, indices: list[int]) -> str:
    found = hashlib.sha256()
    with _same_random_numbers():
        for index in indices:
            found.update(repr(_told(data_set[index], _MAX_DEPTH)).encode())
    return found.hexdigest()[:16]


def _told(value: Any, depth: int) -> Any:
    """What of a value counts."""
    if depth == 0:
        return type(value).__name__
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if value is None or isinstance(value, bool | int | str | bytes):
        return value
    if isinstance(value, dict):
        return [(str(key), _told(one, depth - 1)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return [_told(one, depth - 1) for one in value]
    if hasattr(value, "__array__") and hasattr(value, "dtype"):
        return _tensor(torch.as_tensor(value))
    if hasattr(value, "tobytes"):  # an image
        return type(value).__name__, hashlib.sha256(value.tobytes()).hexdigest()
    return type(value).__name__


def _tensor(value: torch.Tensor) -> Any:
    plain = value.detach().to("cpu")
    shape = tuple(plain.shape)
    if not (plain.is_floating_point() or plain.is_complex()):
        content = plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return str(plain.dtype), shape, hashlib.sha256(content).hexdigest()
    size = plain.abs().double()
    figures = (size.mean(), size.square().mean().sqrt()) if size.numel() else ()
    return str(plain.dtype), shape, [f"{float(one):.2g}" for one in figures]


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Within, everybody draws the same; after it, each goes on with its own."""
    numpy = sys.modules.get("numpy")
    before = torch.get_rng_state(), random.getstate()
    of_numpy = None if numpy is None else numpy.random.get_state()
    try:
        torch.default_generator.manual_seed(_SEED)
        random.seed(_SEED)
        if numpy is not None:
            numpy.random.seed(_SEED)
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        if numpy is not None:
            numpy.random.set_state(of_numpy)
