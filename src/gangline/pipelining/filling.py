# SPDX-License-Identifier: Apache-2.0
"""Layers on the meta device have shapes and no values: only who holds one gives it memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gangline.spec.errors import UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor


def is_empty(module: nn.Module) -> bool:
    """Whether it has no values yet."""
    return any(tensor.is_meta for tensor in _tensors(module))


def fill(module: nn.Module, device: torch.device, *, seed: int) -> None:
    """Moves a module to a device. One on the meta device is initialised there, by this seed.

    So the values depend on the seed alone, whoever holds the layer.
    """
    if not is_empty(module):
        module.to(device)
        return
    module.to_empty(device=device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for name, inner in module.named_modules():
            own = [*inner.parameters(recurse=False), *inner.buffers(recurse=False)]
            if not own:
                continue
            reset: Any = getattr(inner, "reset_parameters", None)
            if reset is None:
                raise UnsupportedError(
                    f"the layer {name or type(inner).__name__!r} is on the meta device, and "
                    f"{type(inner).__name__} has no reset_parameters() to give it values: define one, "
                    "or make the model in main memory"
                )
            reset()


def empty(module: nn.Module) -> None:
    """Gives back a module's memory: shapes are all that is left of its values."""
    module.to("meta")


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]
