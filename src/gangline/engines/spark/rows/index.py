# SPDX-License-Identifier: Apache-2.0
"""Which file holds which row: the rows of a DataFrame have the numbers 0 … n - 1 from here on.

A part is what one partition of the DataFrame became: one Arrow file of some record batches. Which
attempt at a partition counts is Spark's decision, and only what that attempt has written is listed,
so a row is here once, however many attempts there were.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NUMBER, VECTOR, TEXT, BINARY = "number", "vector", "text", "binary"
"""What a column can hold: numbers, lists of numbers that are all as long, text, or bytes."""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column, as one part has it."""

    name: str
    kind: str
    dtype: str
    """Of its numbers, as numpy calls it; empty where it has none."""
    width: int = 1
    """How many numbers a row has; of a part without rows, 0."""
    nulls: int = 0
    """How many rows have no value."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One file."""

    partition: int
    file: str
    rows: tuple[int, ...]
    """How many rows each of its record batches has."""
    columns: tuple[Column, ...]

    @property
    def num_rows(self) -> int:
        """How many rows the file has."""
        return sum(self.rows)


class RowIndex(msgspec.Struct, frozen=True, kw_only=True):
    """All rows, in the order of the partitions."""

    parts: tuple[Part, ...]
    columns: tuple[Column, ...]

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return sum(part.num_rows for part in self.parts)

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files."""
        return tuple(part.file for part in self.parts)

    def column(self, name: str) -> Column:
        """The column of that name. Raises UsageError where there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        there = ", ".join(column.name for column in self.columns)
        raise UsageError(f"there is no column {name!r}; the DataFrame has {there}")

    @classmethod
    def of(cls, parts: Iterable[Part]) -> RowIndex:
        """The index of what was written. Raises UsageError for what cannot be samples."""
        ordered = sorted(parts, key=lambda part: part.partition)
        filled = tuple(part for part in ordered if part.num_rows)
        if not filled:
            raise UsageError(
                "the DataFrame has no rows, so there is nothing to train on: see what it was filtered "
                "by, with df.count() after each step"
            )
        columns = tuple(
            _agreed([part.columns[place] for part in filled])
            for place in range(len(filled[0].columns))
        )
        return cls(parts=filled, columns=columns)


class Locator:
    """Finds rows by their numbers."""

    def __init__(self, index: RowIndex) -> None:
        self._batches = [
            (number, batch)
            for number, part in enumerate(index.parts)
            for batch in range(len(part.rows))
        ]
        counts = [rows for part in index.parts for rows in part.rows]
        self._starts = np.array([0, *accumulate(counts)], dtype=np.int64)

    def locate(self, numbers: Sequence[int]) -> list[tuple[int, int, np.ndarray, np.ndarray]]:
        """For each record batch that holds some: part, batch, places in the request, and rows in it."""
        wanted = np.asarray(numbers, dtype=np.int64)
        total = int(self._starts[-1])
        if len(wanted) and not (wanted.min() >= 0 and wanted.max() < total):
            bad = int(wanted[(wanted < 0) | (wanted >= total)][0])
            raise IndexError(f"there is no row {bad}: the rows are 0 to {total - 1}")
        holder = np.searchsorted(self._starts, wanted, side="right") - 1
        found = []
        for one in np.unique(holder):
            places = np.flatnonzero(holder == one)
            part, batch = self._batches[one]
            found.append((part, batch, places, wanted[places] - self._starts[one]))
        return found


def _agreed(columns: Sequence[Column]) -> Column:
    """One column, as all parts have it. Raises UsageError where some have no value, or differ."""
    first = columns[0]
    nulls = sum(column.nulls for column in columns)
    if nulls:
        raise UsageError(
            f"{nulls} rows have no value in column {first.name!r}, and a tensor has no nulls: leave "
            f"these rows out by df.dropna(subset=[{first.name!r}]), or fill them by df.fillna"
        )
    widths = sorted({column.width for column in columns})
    if len(widths) > 1:
        raise UsageError(
            f"the lists in column {first.name!r} are not all as long ({widths[0]} to {widths[-1]} "
            "numbers): bring them to one length, as by pyspark.sql.functions.slice"
        )
    return first
