# SPDX-License-Identifier: Apache-2.0
"""Rows are found by number, and what cannot be samples is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.engines.spark.rows.index import VECTOR, Column, Locator, Part, RowIndex
from gangline.engines.spark.rows.order import PartsShuffled
from gangline.spec.errors import UsageError

X = Column(name="x", kind="number", dtype="float64")


def part(partition: int, *rows: int, column: Column = X) -> Part:
    return Part(partition=partition, file=f"{partition}.arrow", rows=rows, columns=(column,))


SIZES = st.lists(st.lists(st.integers(1, 5), max_size=4), min_size=1, max_size=6)


@given(sizes=SIZES.filter(any), data=st.data())
def test_each_number_is_one_row_of_one_batch(sizes: list[list[int]], data: st.DataObject) -> None:
    parts = [part(number, *rows) for number, rows in enumerate(sizes)]
    index = RowIndex.of(data.draw(st.permutations(parts)))
    numbers = data.draw(st.permutations(range(index.num_rows)))
    plain = [
        (number, batch, row)
        for number, one in enumerate(index.parts)
        for batch, count in enumerate(one.rows)
        for row in range(count)
    ]
    found = {}
    for number, batch, places, rows in Locator(index).locate(numbers):
        for place, row in zip(places, rows, strict=True):
            found[numbers[place]] = (number, batch, int(row))
    assert [found[number] for number in range(index.num_rows)] == plain


def test_parts_are_in_the_order_of_the_partitions_and_empty_ones_are_left_out() -> None:
    index = RowIndex.of([part(2, 3), part(0, 1), part(1)])
    assert index.files == ("0.arrow", "2.arrow")
    assert index.num_rows == 4


def test_shuffled_parts_are_all_rows_once_part_by_part() -> None:
    index = RowIndex.of([part(0, 3, 2), part(1, 4), part(2, 1)])
    order = list(PartsShuffled(index))
    assert sorted(order) == list(range(10))
    holder = np.searchsorted([5, 9], order, side="right")
    assert len(np.flatnonzero(np.diff(holder))) == 2  # a part is left once


@pytest.mark.parametrize("number", [-1, 4])
def test_a_number_beyond_the_rows_is_named(number: int) -> None:
    with pytest.raises(IndexError, match=f"no row {number}: the rows are 0 to 3"):
        Locator(RowIndex.of([part(0, 4)])).locate([0, number])


def test_no_rows_at_all_are_refused() -> None:
    with pytest.raises(UsageError, match="no rows"):
        RowIndex.of([part(0), part(1)])


def test_nulls_are_counted_over_all_parts() -> None:
    one = Column(name="x", kind="number", dtype="float64", nulls=2)
    other = Column(name="x", kind="number", dtype="float64", nulls=3)
    with pytest.raises(UsageError, match=r"5 rows have no value in column 'x'.*dropna"):
        RowIndex.of([part(0, 4, column=one), part(1, 4), part(2, 9, column=other)])


def test_lists_of_different_lengths_are_named() -> None:
    columns = [Column(name="v", kind=VECTOR, dtype="float32", width=width) for width in (3, 5)]
    with pytest.raises(UsageError, match=r"'v' are not all as long \(3 to 5"):
        RowIndex.of(part(number, 1, column=one) for number, one in enumerate(columns))


def test_an_unknown_column_is_named_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="no column 'y'; the DataFrame has x"):
        RowIndex.of([part(0, 1)]).column("y")
