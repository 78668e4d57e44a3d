# SPDX-License-Identifier: Apache-2.0
"""A model's state as bytes that hold tensors and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load, save_file

from gangline.spec.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn


def check_model(model: Any) -> int:
    """Refuses what cannot be trained and sent back; how many bytes its state is."""
    if not isinstance(model, torch.nn.Module):
        kind = type(model).__name__
        raise UsageError(
            f"the model must be a torch.nn.Module, not {kind}; a class or function that makes one is "
            "called first, as in fit(df, Net(), …)"
        )
    state = model.state_dict()
    others = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if others:
        raise UsageError(
            f"the model's state_dict has {others[0]!r}, which is no tensor and is not sent back: keep "
            "it outside of the model, or register it as a buffer"
        )
    if not any(one.requires_grad for one in model.parameters()):
        raise UsageError(
            "the model has no parameters that require a gradient: nothing would be trained"
        )
    return sum(value.numel() * value.element_size() for value in state.values())


def write_state(model: nn.Module, path: Path) -> None:
    """Writes the state to a file that gets its name when it is complete."""
    state = {
        name: value.detach().cpu().clone().contiguous()
        for name, value in model.state_dict().items()
    }
    unfinished = path.with_suffix(".part")
    save_file(state, unfinished)
    unfinished.replace(path)


def load_state(model: nn.Module, data: bytes) -> None:
    """Puts a state that came back into a model."""
    try:
        model.load_state_dict(load(data))
    except Exception as error:
        raise LaunchError(
            f"what the workers have trained does not fit the model that was given ({error}): a train "
            "function must return that model, or one with the same parameters"
        ) from error
