# SPDX-License-Identifier: Apache-2.0
"""The gloo group: sums, maxima of headers, gathering and errors, with members in three threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.distributed import HashStore

from gangline.collectives import GroupKey, SoloGroup, gather_bytes
from gangline.collectives.gloo import GlooGroup
from gangline.collectives.protocol import part_bounds
from gangline.spec.errors import ExchangeAborted, ExchangeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MEMBERS = 3


class Members:
    """Three members of a group, each driven by a thread of its own."""

    def __init__(self, *, timeout_s: float = 20.0) -> None:
        store = HashStore()
        key = GroupKey(run="test", view=0, attempt=0)
        self._threads = ThreadPoolExecutor(MEMBERS)
        self.groups: list[GlooGroup] = list(
            self._threads.map(
                lambda rank: GlooGroup(
                    key, store=store, rank=rank, size=MEMBERS, timeout_s=timeout_s
                ),
                range(MEMBERS),
            )
        )

    def each(self, call: Callable[[GlooGroup], Any]) -> list[Any]:
        """What the call returns for each member, all at the same time."""
        return list(self._threads.map(call, self.groups))

    def close(self) -> None:
        for group in self.groups:
            group.close()
        self._threads.shutdown()
        self.groups.clear()


@pytest.fixture(scope="module")
def members() -> Iterator[Members]:
    members = Members()
    yield members
    members.close()


LARGE = st.integers(-(1 << 63), (1 << 63) - 1)
SIZES = st.sampled_from([0, 1, 7, 300, 70_000])


@given(
    rows=st.integers(1, 5).flatmap(
        lambda width: st.lists(
            st.lists(LARGE, min_size=width, max_size=width), min_size=MEMBERS, max_size=MEMBERS
        )
    ),
    size=SIZES,
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
)
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_header_is_the_maximum_beside_any_tensor(
    members: Members, rows: list[list[int]], size: int, dtype: torch.dtype
) -> None:
    def exchange(group: GlooGroup) -> tuple[torch.Tensor, list[int]]:
        tensor = torch.full((size,), 2.0**group.rank, dtype=dtype)
        header = np.array(rows[group.rank], dtype=np.int64)
        group.all_reduce(tensor, header)
        return tensor, header.tolist()

    for tensor, header in members.each(exchange):
        assert header == [max(column) for column in zip(*rows, strict=True)]
        assert torch.equal(tensor, torch.full((size,), 7.0, dtype=dtype))


def test_numbers_that_are_not_finite_leave_the_header_alone(members: Members) -> None:
    def exchange(group: GlooGroup) -> tuple[torch.Tensor, list[int]]:
        tensor = torch.tensor([float("inf"), float("nan"), 1.0])
        header = np.array([group.rank, -group.rank, 1 << 40], dtype=np.int64)
        group.all_reduce(tensor, header)
        return tensor, header.tolist()

    for tensor, header in members.each(exchange):
        assert header == [2, 0, 1 << 40]
        assert tensor[0] == float("inf")
        assert bool(tensor[1].isnan())
        assert tensor[2] == 3.0


def test_a_tensor_of_any_shape_and_strides_is_summed(members: Members) -> None:
    def exchange(group: GlooGroup) -> torch.Tensor:
        tensor = torch.arange(6.0).reshape(2, 3).t()
        group.all_reduce(tensor, np.zeros(1, dtype=np.int64))
        return tensor

    for result in members.each(exchange):
        assert torch.equal(result, 3 * torch.arange(6.0).reshape(2, 3).t())


def test_every_member_gets_its_part_of_the_sum(members: Members) -> None:
    parts = members.each(lambda group: group.reduce_scatter(torch.arange(7.0)))
    bounds = part_bounds(7, MEMBERS)
    for rank, part in enumerate(parts):
        assert torch.equal(part, 3 * torch.arange(7.0)[bounds[rank] : bounds[rank + 1]])


def test_payloads_of_any_length_are_gathered(members: Members) -> None:
    payloads = [b"", b"\x00\xff", b"long" * 100]
    for found in members.each(lambda group: gather_bytes(group, payloads[group.rank])):
        assert found == payloads


def test_the_roots_tensor_is_everybodys(members: Members) -> None:
    def exchange(group: GlooGroup) -> torch.Tensor:
        tensor = torch.tensor([group.rank, 5])
        group.broadcast(tensor, 1)
        return tensor

    assert all(result.tolist() == [1, 5] for result in members.each(exchange))


def test_a_tensor_is_sent_from_one_to_another(members: Members) -> None:
    def exchange(group: GlooGroup) -> float:
        tensor = torch.tensor([float(group.rank)])
        if group.rank == 2:
            group.send(tensor, 0)
        elif group.rank == 0:
            group.receive(tensor, 2)
        return float(tensor)

    assert members.each(exchange) == [2.0, 1.0, 2.0]


def test_a_member_that_does_not_come_is_an_exchange_error() -> None:
    members = Members(timeout_s=0.3)

    def exchange(group: GlooGroup) -> str:
        if group.rank == 1:
            return "stayed away"
        with pytest.raises(ExchangeError, match="gloo all-reduce failed: ") as caught:
            group.all_reduce(torch.ones(4))
        assert not isinstance(caught.value, ExchangeAborted)
        with pytest.raises(ExchangeAborted, match="gloo broadcast: the group was closed"):
            group.broadcast(torch.ones(1), 0)
        return "gave up"

    assert members.each(exchange) == ["gave up", "stayed away", "gave up"]
    members.close()


def test_a_group_that_was_aborted_refuses_every_call() -> None:
    others = Members()
    for group in others.groups:
        group.abort()
        with pytest.raises(ExchangeAborted, match="gloo all-gather: the group was closed"):
            group.all_gather(torch.ones(1))
    others.close()


# --- a group of one ----------------------------------------------------------------------------------


def test_a_group_of_one_has_nothing_to_do() -> None:
    group = SoloGroup()
    tensor, header = torch.tensor([1.0, 2.0]), np.array([3], dtype=np.int64)
    group.all_reduce(tensor, header)
    group.broadcast(tensor, 0)
    assert tensor.tolist() == [1.0, 2.0]
    assert header.tolist() == [3]
    assert [part.tolist() for part in group.all_gather(tensor)] == [[1.0, 2.0]]
    assert group.reduce_scatter(tensor.view(2, 1)).tolist() == [1.0, 2.0]
    assert gather_bytes(group, b"me") == [b"me"]
    group.abort()
    group.close()


def test_a_group_of_one_has_nobody_to_talk_to() -> None:
    with pytest.raises(ValueError, match="nobody to send to"):
        SoloGroup().send(torch.ones(1), 1)
    with pytest.raises(ValueError, match="nobody to receive from"):
        SoloGroup().receive(torch.ones(1), 1)


def test_a_groups_name_says_everything_that_makes_it_one() -> None:
    assert str(GroupKey(run="tuesday", view=3, attempt=1, level="top")) == "tuesday/3/1/top"


@given(length=st.integers(0, 1000), parts=st.integers(1, 20))
def test_parts_are_as_equal_as_possible(length: int, parts: int) -> None:
    bounds = part_bounds(length, parts)
    sizes = [stop - start for start, stop in pairwise(bounds)]
    assert (bounds[0], bounds[-1], len(sizes)) == (0, length, parts)
    assert max(sizes) - min(sizes) <= 1
