# SPDX-License-Identifier: Apache-2.0
"""Which shard holds which parameters."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.paramserver.shards import assign
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

WEIGHTS = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=4)
SIZES = st.lists(st.integers(0, 10**9), min_size=4, max_size=40)


def fullest(held: Sequence[Sequence[int]], sizes: Sequence[int], weights: Sequence[float]) -> float:
    loads = [sum(sizes[index] for index in indices) for indices in held]
    return max(load / weight for load, weight in zip(loads, weights, strict=True))


@given(SIZES, WEIGHTS)
def test_every_parameter_has_one_place_and_every_shard_has_some(
    sizes: list[int], weights: list[float]
) -> None:
    held = assign(sizes, weights)
    assert len(held) == len(weights)
    assert all(held)
    assert sorted(index for indices in held for index in indices) == list(range(len(sizes)))
    assert held == assign(list(sizes), list(weights))


@given(
    st.lists(st.integers(1, 100), min_size=3, max_size=6),
    st.lists(st.floats(0.2, 5.0), min_size=1, max_size=3),
)
def test_it_is_at_most_twice_as_full_as_the_best(sizes: list[int], weights: list[float]) -> None:
    places = itertools.product(range(len(weights)), repeat=len(sizes))
    splits = [
        [[i for i, place in enumerate(chosen) if place == shard] for shard in range(len(weights))]
        for chosen in places
    ]
    best = min(fullest(held, sizes, weights) for held in splits if all(held))
    assert fullest(assign(sizes, weights), sizes, weights) <= 2 * best * (1 + 1e-12)


def test_known_cases() -> None:
    assert assign([4, 3, 3, 2], [1.0, 1.0]) == ((0, 3), (1, 2))
    assert assign([6, 3, 3], [3.0, 1.0]) == ((0, 1), (2,))
    assert assign([100, 1], [1.0, 0.001]) == ((0,), (1,))
    assert assign([0, 0], [1.0, 1.0]) == ((0,), (1,))


@pytest.mark.parametrize(
    ("sizes", "weights", "said"),
    [
        ([1], [1.0, 1.0], "2 shards for 1 parameters"),
        ([1], [], "at least one shard"),
        ([1], [0.0], "weight of shard 0"),
        ([1], [float("nan")], "weight of shard 0"),
        ([-1], [1.0], "size of parameter 0"),
    ],
)
def test_what_cannot_be_is_refused(sizes: list[int], weights: list[float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        assign(sizes, weights)
