# SPDX-License-Identifier: Apache-2.0
"""Sorts what `prepare` was given into models, optimizers and the loader, and says what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

TWO_LOADERS = (
    "one loop draws from one loader. If the second one is for evaluation, give it to "
    "gangline.evaluate(loader). If both are read in the same loop (zip), make one data set whose "
    "samples are pairs, or index both by the batches of gangline.batches(length, global_batch=…)"
)
_NO_LOADER = (
    "A loop without a DataLoader takes its indices from one of its own: "
    "loader = gangline.batches(length, global_batch=…)"
)


class Objects(NamedTuple):
    """What `prepare` was given, by kind."""

    models: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]
    loader: DataLoader[Any]


def sort_objects(objects: Sequence[Any]) -> Objects:
    """The models, the optimizers (there may be none) and the one loader."""
    models: list[nn.Module] = []
    optimizers: list[torch.optim.Optimizer] = []
    loaders: list[DataLoader[Any]] = []
    for item in objects:
        if isinstance(item, nn.Module):
            models.append(item)
        elif isinstance(item, torch.optim.Optimizer):
            optimizers.append(item)
        elif isinstance(item, DataLoader):
            loaders.append(item)
        else:
            raise UsageError(f"prepare() was given a {type(item).__name__}: {_instead(item)}")
    if len(loaders) > 1:
        raise UsageError(f"prepare() was given {len(loaders)} DataLoaders: {TWO_LOADERS}")
    if not models or not loaders:
        raise UsageError(_missing(models, optimizers, loaders))
    return Objects(models, optimizers, loaders[0])


def _instead(item: Any) -> str:
    """What to give in place of an object that `prepare` does not take."""
    if isinstance(item, nn.Parameter):
        return "give parameters in a module, nn.ParameterList([parameter])"
    if isinstance(item, list | tuple):
        return "give its items one by one, gangline.prepare(*items)"
    if callable(getattr(item, "step", None)) and callable(getattr(item, "zero_grad", None)):
        return (
            "an optimizer must be a torch.optim.Optimizer. Have its class inherit from that, or leave "
            "it out, gangline.prepare(model, loader): then the loop updates the parameters itself"
        )
    if isinstance(item, Dataset):
        return "give the loader that draws from it, DataLoader(data, batch_size=…, shuffle=True)"
    return (
        "it takes models, optimizers and one DataLoader; schedulers, scalers and other state go into "
        f"stateful=[…]. {_NO_LOADER}"
    )


def _missing(models: Sequence[Any], optimizers: Sequence[Any], loaders: Sequence[Any]) -> str:
    absent = ["model"] * (not models) + ["DataLoader"] * (not loaders)
    names = ", ".join(
        [
            *_names("model", max(1, len(models))),
            *_names("optimizer", max(1, len(optimizers))),
            "loader",
        ]
    )
    hint = "" if loaders else f". {_NO_LOADER}"
    return (
        f"prepare() was given no {' and no '.join(absent)}. Call it with everything that takes part: "
        f"{names} = gangline.prepare({names}){hint}"
    )


def _names(word: str, count: int) -> list[str]:
    return [word] if count == 1 else [f"{word}_{number}" for number in range(1, count + 1)]
