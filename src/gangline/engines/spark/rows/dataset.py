# SPDX-License-Identifier: Apache-2.0
"""The rows of Arrow files as a map-style data set of torch, read through memory maps.

Any worker can read any row by its number, so the ledger of samples works as for any other data set:
who gets a row, and who gets it again when somebody is lost, does not depend on where it was computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader, Dataset

from gangline.engines.spark.rows.index import BINARY, NUMBER, TEXT, VECTOR, Locator, RowIndex
from gangline.engines.spark.rows.order import PARTITIONS, PartsShuffled
from gangline.spec.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor


class RowBatch(Sequence[Any]):
    """Some rows, column by column; as a sequence, one sample after the other."""

    def __init__(self, columns: dict[str, Any], count: int, form: Callable[[Any], Any]) -> None:
        self.columns = columns
        self._count = count
        self._form = form

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        if not -self._count <= place < self._count:
            raise IndexError(place)
        return self._form({name: values[place] for name, values in self.columns.items()})

    def stacked(self) -> Any:
        """The whole batch in the form of a sample, each tensor with one dimension more."""
        return self._form(self.columns)


class Rows(Dataset[Any]):
    """The rows of a DataFrame. A sample is a dictionary by column, or what `select` says."""

    def __init__(self, index: RowIndex, folder: Path) -> None:
        self.index = index
        self._folder = folder
        self._features: tuple[str, ...] | None = None
        self._label: str | None = None
        self._locator: Locator | None = None
        self._opened: dict[int, Any] | None = None
        self._views: dict[tuple[int, int, str], Any] | None = None

    def __len__(self) -> int:
        return self.index.num_rows

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> RowBatch:
        """Several rows at once: what a DataLoader asks for."""
        return RowBatch(self._gather(numbers), len(numbers), self._form)

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: it opens the files itself."""
        return {**self.__dict__, "_locator": None, "_opened": None, "_views": None}

    def select(self, features: str | Sequence[str], label: str | None = None) -> Rows:
        """The same rows, whose samples are (features, label), or features alone, as tensors.

        Features are the numbers of these columns, one after the other, as float32. A label is the
        number of its column (whole numbers as int64, others as float32), or its vector.
        """
        names = (features,) if isinstance(features, str) else tuple(features)
        if not names:
            raise UsageError("features names no column: give one or more, as features=['x', 'y']")
        for name in (*names, *(() if label is None else (label,))):
            column = self.index.column(name)
            if column.kind not in (NUMBER, VECTOR):
                raise UsageError(
                    f"column {name!r} holds {column.kind}, and features and labels are numbers; use a "
                    "train function, which gets all columns"
                )
        chosen = Rows(self.index, self._folder)
        chosen._features, chosen._label = names, label
        return chosen

    @property
    def width(self) -> int:
        """How many numbers the features of a row are."""
        return sum(self.index.column(name).width for name in self._features or ())

    def loader(
        self, batch_size: int, *, shuffle: bool | str = True, **options: Any
    ) -> DataLoader[Any]:
        """A DataLoader whose batches come stacked from the files.

        `shuffle`: all rows (True), or "partitions", which shuffles the partitions and the rows in
        each: neighbours in the order then come from one file. Further options are a DataLoader's.
        """
        if shuffle == PARTITIONS:
            options["sampler"] = PartsShuffled(self.index)
            shuffle = False
        if not isinstance(shuffle, bool):
            raise UsageError(f'shuffle is True, False or "{PARTITIONS}", not {shuffle!r}')
        return DataLoader(
            self, batch_size=batch_size, shuffle=shuffle, collate_fn=stacked, **options
        )

    # --- reading -----------------------------------------------------------------------------------

    def _form(self, columns: dict[str, Any]) -> Any:
        if self._features is None:
            return columns
        parts = [_as_features(columns[name], self.index.column(name)) for name in self._features]
        x = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        if self._label is None:
            return x
        y = columns[self._label]
        return x, y.float() if y.is_floating_point() or y.dtype is torch.bool else y.long()

    @property
    def _names(self) -> list[str]:
        if self._features is None:
            return [column.name for column in self.index.columns]
        return list(dict.fromkeys([*self._features, *([self._label] if self._label else [])]))

    def _gather(self, numbers: Sequence[int]) -> dict[str, Any]:
        if self._locator is None:
            self._locator = Locator(self.index)
        found = self._locator.locate(numbers)
        return {name: self._gather_column(name, found, len(numbers)) for name in self._names}

    def _gather_column(self, name: str, found: Any, count: int) -> Any:
        column = self.index.column(name)
        if column.kind in (TEXT, BINARY):
            values: list[Any] = [None] * count
            for part, batch, places, rows in found:
                taken = self._batch(part, batch).column(name).take(pa.array(rows))
                for place, value in zip(places, taken.to_pylist(), strict=True):
                    values[place] = value
            return values
        shape = (count,) if column.kind == NUMBER else (count, column.width)
        gathered = np.empty(shape, dtype=column.dtype)
        for part, batch, places, rows in found:
            gathered[places] = self._view(part, batch, name)[rows]
        return torch.from_numpy(gathered)

    def _view(self, part: int, batch: int, name: str) -> Any:
        """A column of a record batch as an array over the file, or a copy where bits are packed."""
        if self._views is None:
            self._views = {}
        key = part, batch, name
        if key not in self._views:
            column, values = self.index.column(name), self._batch(part, batch).column(name)
            if column.kind == VECTOR:
                flat = values.flatten().to_numpy(zero_copy_only=True)
                self._views[key] = flat.reshape(-1, column.width)
            else:
                self._views[key] = values.to_numpy(zero_copy_only=column.dtype != "bool")
        return self._views[key]

    def _batch(self, part: int, batch: int) -> Any:
        if self._opened is None:
            self._opened = {}
        if part not in self._opened:
            self._opened[part] = self._open(part)
        return self._opened[part].get_batch(batch)

    def _open(self, part: int) -> Any:
        path = self._folder / self.index.parts[part].file
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
        except (OSError, pa.ArrowInvalid) as error:
            raise LaunchError(
                f"the file {path} with {self.index.parts[part].num_rows} rows of the DataFrame cannot "
                f"be read ({error}): nobody may change that folder while the job runs"
            ) from error
        if reader.num_record_batches != len(self.index.parts[part].rows):
            raise LaunchError(
                f"the file {path} has {reader.num_record_batches} record batches, and "
                f"{len(self.index.parts[part].rows)} were written: nobody may change that folder "
                "while the job runs"
            )
        return reader


def stacked(batch: Any) -> Any:
    """The collate function of a loader over rows, which are stacked already."""
    return batch.stacked()


def _as_features(values: Tensor, column: Any) -> Tensor:
    numbers = values.float()
    return numbers if column.kind == VECTOR else numbers.unsqueeze(-1)
