# SPDX-License-Identifier: Apache-2.0
"""What the function is called with: the rows of a chunk, and what every chunk needs whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from gangline.local.table import Table, library_of
from gangline.spec.errors import UsageError

_NO_ROWS = (str, bytes, bytearray, dict, set, frozenset)


class Rows(Protocol):
    """Data that are cut by rows."""

    num_rows: int

    def run(self, start: int, stop: int) -> Any:
        """Neighbouring rows."""


class Items:
    """A sequence whose items are the rows: a list, a tuple, a range."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items
        self.num_rows = len(items)

    def run(self, start: int, stop: int) -> Any:
        """A slice, of the same type."""
        return self._items[start:stop]


class Inputs:
    """The function's arguments, of which each is cut by rows or given whole."""

    def __init__(self, rows: Any, others: Sequence[Any], *, broadcast: Iterable[int] = ()) -> None:
        """`broadcast` are the places of arguments that are given whole; `rows` is argument 0."""
        whole = _checked_places(broadcast, len(others))
        first = _rows_of(rows)
        self.num_rows = first.num_rows
        self._parts: list[tuple[Rows | None, Any]] = [(first, None)]
        for place, other in enumerate(others, start=1):
            table = None if place in whole else self._cut(place, other)
            self._parts.append((table, None if table is not None else other))

    def arguments(self, start: int, stop: int) -> list[Any]:
        """Those of the chunk start … stop − 1."""
        return [value if table is None else table.run(start, stop) for table, value in self._parts]

    def _cut(self, place: int, data: Any) -> Rows | None:
        """How an argument is cut; None: it is given whole."""
        if not _has_rows(data):
            return None
        table = _rows_of(data)
        if table.num_rows == self.num_rows:
            return table
        if table.num_rows == 1:
            return None
        raise UsageError(
            f"argument {place} has {table.num_rows} rows, and rows (argument 0) has {self.num_rows}: "
            f"an argument is cut with the rows if it has as many, and given whole if it has one; to "
            f"give it whole, use broadcast=({place},)"
        )


def _has_rows(data: Any) -> bool:
    if library_of(data) is not None:
        return len(data.shape) >= 1
    return isinstance(data, Sequence) and not isinstance(data, _NO_ROWS)


def _rows_of(data: Any) -> Rows:
    if library_of(data) is not None:
        return Table(data, name="rows")
    if isinstance(data, _NO_ROWS) or not isinstance(data, Iterable):
        raise UsageError(
            f"rows is a {type(data).__name__}, which has no rows in an order; give an array, a tensor, "
            f"a sparse matrix, a data frame, a list, or a range"
        )
    return Items(data if isinstance(data, Sequence) else list(data))


def _checked_places(broadcast: Iterable[int], others: int) -> frozenset[int]:
    places = frozenset([broadcast] if isinstance(broadcast, int) else broadcast)
    wrong = [place for place in places if not isinstance(place, int) or not 1 <= place <= others]
    if wrong:
        known = f"1 to {others}" if others else "none: the function has rows alone"
        raise UsageError(
            f"broadcast={tuple(places)!r}: give the places of arguments after rows ({known})"
        )
    return places
