# SPDX-License-Identifier: Apache-2.0
"""Sparse gradients in their places, and summed over a group by the union of their rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from runtime_jobs import exchanging
from torch import nn

from gangline.spec.errors import UnsupportedError
from gangline.worker.gradients import tables
from gangline.worker.gradients.layout import Slot, build_layout
from wire_members import run_members

ROWS, WIDTH = 6, 2


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, 3)
        self.table = nn.Embedding(ROWS, WIDTH, sparse=True)
        self.bag = nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True)
        self.dense = nn.Embedding(ROWS, WIDTH)


def slot_of(gradient: torch.Tensor | None = None) -> Slot:
    parameter = nn.Parameter(torch.zeros(ROWS, WIDTH))
    slot = Slot("table", parameter, 0, view=torch.zeros(ROWS, WIDTH), is_table=True)
    parameter.grad = gradient
    return slot


def sparse(*rows: int, value: float = 1.0) -> torch.Tensor:
    values = torch.full((len(rows), WIDTH), value)
    return torch.sparse_coo_tensor(
        torch.tensor([rows]), values, (ROWS, WIDTH), check_invariants=True
    )


def test_each_table_has_a_unit_of_its_own_and_says_so_in_the_signature() -> None:
    model = Model()
    layout = build_layout([model], [])
    alone = [unit for unit in layout.units if unit.table is not None]
    assert sorted(unit.slots[0].name for unit in alone) == ["bag.weight", "table.weight"]
    assert all(len(unit.slots) == 1 and unit.length == ROWS * WIDTH for unit in alone)
    assert sum(line.endswith(" by rows") for line in layout.signature) == 2


def test_rows_of_several_passes_add_up_and_what_is_cleared_is_zero() -> None:
    slot = slot_of(sparse(4, 1, 4))
    tables.collect(slot, 0.5, is_kept=False)
    assert slot.rows is not None
    assert slot.rows.tolist() == [1, 4]
    slot.parameter.grad = sparse(0, 1)
    tables.collect(slot, 1.0, is_kept=True)
    assert slot.rows.tolist() == [0, 1, 4]
    assert slot.place[:, 0].tolist() == [1, 1.5, 0, 0, 1, 0]
    assert float(tables.square(slot)) == pytest.approx(2 * (1 + 2.25 + 1))
    slot.parameter.grad = sparse(3, value=float("nan"))
    tables.collect(slot, 0.0, is_kept=True)  # a ghost's
    assert slot.rows.tolist() == [0, 1, 4]
    tables.collect(slot, 0.0, is_kept=False)
    assert slot.rows.tolist() == []
    assert not slot.place.any()


@pytest.mark.parametrize("has_header", [True, False])
@pytest.mark.parametrize(
    ("given", "union"),
    [
        ([[1, 3], [0, 3], [5]], [0, 1, 3, 5]),
        ([[], [2], []], [2]),
        ([[], [], []], []),
        ([[1], None, [3]], None),
    ],
)
def test_members_sum_the_union_of_their_rows(
    given: list[list[int] | None], union: list[int] | None, has_header: bool
) -> None:
    def member(group):
        slot, rows = slot_of(), given[group.rank]
        slot.rows = None if rows is None else torch.tensor(rows, dtype=torch.int64)
        slot.place[slice(None) if rows is None else rows] = group.rank + 1.0
        header = np.array([group.rank], dtype=np.int64) if has_header else None
        tables.sum_rows(group, slot, header)
        assert header is None or header.tolist() == [2]
        return None if slot.rows is None else slot.rows.tolist(), slot.place.clone()

    expected = torch.zeros(ROWS, WIDTH)
    for rank, rows in enumerate(given):
        expected[slice(None) if rows is None else rows] += rank + 1.0
    for rows, place in run_members(3, member):
        assert rows == union
        assert torch.equal(place, expected)


def test_only_rows_of_a_table_travel_and_the_header_goes_with_the_last() -> None:
    model = nn.Sequential(nn.Embedding(500, 2, sparse=True))
    with exchanging(model) as exchange:
        exchange.gradients.takes_rows = lambda: True
        exchange.gradients.start(1.0, is_update=True)
        model(torch.tensor([3, 1, 3])).sum().backward()
        assert exchange.group.take() == [(2 * 2 * 4, True)]
        (rows,) = exchange.gradients.rows().values()
        assert rows.tolist() == [1, 3]


def test_in_a_group_a_sparse_gradient_of_what_is_no_table_is_refused() -> None:
    model = nn.Embedding(5, 2)
    with exchanging(model) as exchange:
        exchange.gradients.takes_rows = lambda: True
        exchange.gradients.start(1.0, is_update=True)
        loss = nn.functional.embedding(torch.tensor([1]), model.weight, sparse=True).sum()
        with pytest.raises(UnsupportedError, match=r"'weight' is sparse.*nn.EmbeddingBag has it"):
            loss.backward()


def test_a_gradient_that_the_loop_puts_there_counts_as_a_whole() -> None:
    model = nn.Embedding(5, 2, sparse=True)
    with exchanging(model) as exchange:
        exchange.gradients.takes_rows = lambda: True
        exchange.gradients.start(1.0, is_update=True)
        model(torch.tensor([1])).sum().backward()
        model.weight.grad = torch.ones(5, 2)
        exchange.gradients.start(1.0, is_update=True)
        model(torch.tensor([2])).sum().backward()
        assert exchange.gradients.rows() == {}
        assert model.weight.grad is not None
        assert model.weight.grad[:, 0].tolist() == [1, 1, 2, 1, 1]
