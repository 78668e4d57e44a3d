# SPDX-License-Identifier: Apache-2.0
"""Buffers of whole numbers are compared over the workers where these meet anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from gangline.spec.errors import MismatchError
from gangline.worker.gradients.buffers import WholeNumbers
from gangline.worker.samples.sample_state import SampleState
from gangline.worker.together.alike import meet_in
from memory_members import MemoryGroup, run_in_memory

if TYPE_CHECKING:
    from collections.abc import Mapping


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("empty", torch.zeros(0, dtype=torch.uint8))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("turns", torch.zeros(3, dtype=torch.complex64))
        self.register_buffer("none", None)
        self.state = SampleState(3)
        self.layers = nn.ModuleList([nn.BatchNorm1d(2), nn.Linear(2, 2)])
        self.layers[1].register_buffer("mask", torch.ones(4, 2, dtype=torch.bool).t())
        self.layers[1].register_buffer("again", self.count)


def checksums_of(numbers: WholeNumbers) -> dict[str, int]:
    numbers.look()
    return dict(numbers.checksums)


def test_whole_numbers_are_watched_and_nothing_else() -> None:
    model = Model()
    found = checksums_of(WholeNumbers([model]))
    assert set(found) == {"count", "empty", "layers.0.num_batches_tracked", "layers.1.mask"}
    assert set(checksums_of(WholeNumbers([nn.Linear(2, 1), model]))) == {
        f"1.{name}" for name in found
    }


def test_a_checksum_follows_the_values_even_of_a_new_tensor() -> None:
    model = Model()
    numbers = WholeNumbers([model])
    before = checksums_of(numbers)
    model.count = model.count + 1
    model.layers[1].mask[0, 1] = False
    after = checksums_of(numbers)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"count", "layers.1.mask"}


class CountingGroup(MemoryGroup):
    """Counts its exchanges."""

    num_exchanges = 0

    def _everybodys(self, own: Any) -> list[Any]:
        self.num_exchanges += 1
        return super()._everybodys(own)


def meet(rows: list[Mapping[str, int]], names: list[str] | None = None) -> list[Any]:
    """What each member is told, or the words of its error, and the number of its exchanges."""

    def member(group: MemoryGroup) -> tuple[list[str] | str, int]:
        group.__class__ = CountingGroup
        assert isinstance(group, CountingGroup)
        name = "here" if names is None else names[group.rank]
        exchange = meet_in(name, worker=group.rank, checksums=rows[group.rank])
        try:
            return exchange(group)["differing"], group.num_exchanges
        except MismatchError as error:
            return str(error), group.num_exchanges

    return run_in_memory(len(rows), member)


TOP = 2**32 - 1


@pytest.mark.parametrize("count", [2, 3, 7])
def test_equal_checksums_cost_no_exchange_beyond_the_meeting(count: int) -> None:
    plain = meet([{}] * count)
    found = meet([{"a": TOP, "b": 5}] * count)
    assert found == plain == [([], plain[0][1])] * count


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([{"a": 1, "b": 2}, {"a": 1, "b": 3}], ["b"]),
        ([{"a": 1, "b": TOP}, {"a": 0, "b": TOP - 1}, {"a": 1, "b": TOP}], ["a", "b"]),
        ([{"a": 1, "b": 2}, {"a": 2, "b": 1}], ["a", "b"]),
        ([{"a": 1}, {"a": 1, "b": 2}], ["b"]),
        ([{"a": 1}, {"b": 1}], ["a", "b"]),
    ],
)
def test_the_names_of_what_differs_are_found_on_all_workers(
    rows: list[Mapping[str, int]], names: list[str]
) -> None:
    assert [found for found, _ in meet(rows)] == [names] * len(rows)


def test_other_places_are_an_error_before_anything_is_compared() -> None:
    for message, _ in meet([{"a": 1}, {"a": 2}], ["here", "there"]):
        assert "worker 0: here, worker 1: there" in message


def test_what_differs_is_said_once_and_on_the_main_worker_only() -> None:
    numbers = WholeNumbers([Model()])
    numbers.warn_of(["count"], is_main=False)
    numbers.warn_of([], is_main=True)
    with pytest.warns(UserWarning, match=r"'count', 'b'\. .*gangline\.sum.*SampleState") as caught:
        numbers.warn_of(["count", "b"], is_main=True)
    numbers.warn_of(["count"], is_main=True)  # a second warning would be an error
    assert caught[0].filename == __file__
