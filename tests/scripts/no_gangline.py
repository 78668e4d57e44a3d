# SPDX-License-Identifier: Apache-2.0
"""What the scripts import in gangline's place when they run as the plain originals: nothing happens."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from collections.abc import Sequence

is_main = is_update = lambda: True
is_ghost = lambda: False  # noqa: E731
epochs = steps = range
no_sync = main_first = nullcontext
save = torch.save


def init(**options: Any) -> None:
    pass


def prepare(*objects: Any, **options: Any) -> Any:
    return objects


def mean(value: Any, weight: float = 1.0) -> Any:
    return value


def sum(value: Any) -> Any:
    return value


def any(flag: bool) -> bool:
    return flag


def evaluate(loader: DataLoader[Any]) -> DataLoader[Any]:
    return loader


def batches(length: int, *, global_batch: int, shuffle: bool = False) -> DataLoader[Any]:
    data: Sequence[int] = range(length)
    return DataLoader(data, batch_size=global_batch, shuffle=shuffle, collate_fn=list)  # type: ignore[arg-type]


class SampleState(torch.nn.Module):
    """A table with an entry per sample."""

    def __init__(self, samples: int, *shape: int) -> None:
        super().__init__()
        self._table = torch.zeros(samples, *shape)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._table[index]

    def __setitem__(self, index: Any, values: torch.Tensor) -> None:
        self._table[index] = values.detach()

    def reset(self) -> None:
        self._table.zero_()
