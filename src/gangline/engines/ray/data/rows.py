# SPDX-License-Identifier: Apache-2.0
"""A Ray data set in a worker: a torch data set of rows, and loaders for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from gangline.engines.ray.data.columns import unpack
from gangline.engines.ray.services.client import client
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class RayRows(Dataset[dict[str, Any]]):
    """The rows of a data set that was given to a GanglineTrainer, by their numbers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._length = int(client.ask(f"data:{name}", "length")[0]["length"])

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: int) -> dict[str, Any]:
        columns = self.__getitems__([row])
        return {name: values[0] for name, values in columns.items()}

    def __getitems__(self, rows: Sequence[int]) -> dict[str, Any]:
        """Several rows at once, column by column."""
        wanted = np.asarray(rows, dtype=np.int64)
        values, data = client.ask(f"data:{self.name}", "rows", wanted.tobytes())
        return {
            name: torch.from_numpy(column) if isinstance(column, np.ndarray) else column
            for name, column in unpack(values["columns"], data).items()
        }

    def loader(
        self,
        batch_size: int,
        *,
        shuffle: bool | int = False,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> DataLoader[dict[str, Any]]:
        """A loader for `gangline.prepare`, whose batches are dicts of tensors, as Ray's are.

        Without shuffling, and with `shuffle=10_000` (rows change places within windows of so many),
        training begins when the first blocks are computed. `shuffle=True` needs all of them first.
        """
        if not isinstance(shuffle, bool) and shuffle < 2:
            raise UsageError(f"shuffle={shuffle}: give True, False, or a window of 2 rows or more")
        is_window = not isinstance(shuffle, bool)
        return DataLoader(
            self,
            batch_size=batch_size,
            shuffle=None if is_window else bool(shuffle),
            sampler=WindowSampler(len(self), int(shuffle), seed) if is_window else None,
            drop_last=drop_last,
            num_workers=num_workers,
            pin_memory=pin_memory,
            collate_fn=_as_it_is,
        )


class WindowSampler(Sampler[int]):
    """All rows once, those of each window in another order in every epoch."""

    def __init__(self, length: int, window: int, seed: int) -> None:
        self._length, self._window, self._seed = length, window, seed
        self._epoch = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng((self._seed, self._epoch))
        self._epoch += 1
        for first in range(0, self._length, self._window):
            size = min(self._window, self._length - first)
            yield from (first + generator.permutation(size)).tolist()


def _as_it_is(columns: Any) -> Any:
    """Rows come as columns already."""
    return columns
