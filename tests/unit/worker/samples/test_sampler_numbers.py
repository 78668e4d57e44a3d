# SPDX-License-Identifier: Apache-2.0
"""Random numbers of a sampler's own: whoever draws next goes on with them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, WeightedRandomSampler

from gangline.collectives import Group, SoloGroup
from gangline.worker.groups.state import pack_state, unpack_state
from gangline.worker.samples.drawn_batches import DrawnBatches
from gangline.worker.samples.generators import find_numbers, states_of
from gangline.worker.samples.loader_order import generators_of
from gangline.worker.samples.order import Company, order_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def on_a_group_of_one(exchange: Callable[[Group], Any], key: Any) -> Any:
    return exchange(SoloGroup())


def make_order(sampler: Any) -> Any:
    return order_of(sampler, length=10, seed=5)


class OwnBatches(BatchSampler):
    """Batches of unlike sizes, by the numbers of several libraries; some are those of a part of it."""

    def __init__(self) -> None:
        self.numbers = [random.Random(3), np.random.default_rng(4), np.random.RandomState(5)]
        self.more = np.random.Generator(np.random.Philox(6))
        self.inner = RandomSampler(range(9), generator=torch.Generator().manual_seed(7))

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[list[int]]:
        one, two, three = self.numbers
        one.gauss(0, 1), three.normal()
        yield [one.randrange(9), int(two.integers(9)), int(three.randint(9))]
        yield [int(self.more.integers(9))]
        yield list(self.inner)


GENERATED: dict[str, Callable[[], Any]] = {
    "replacement": lambda: make_order(
        RandomSampler(range(10), replacement=True, generator=torch.Generator().manual_seed(1))
    ),
    "weighted": lambda: make_order(
        WeightedRandomSampler([1.0, 2.0] * 5, 10, generator=torch.Generator().manual_seed(1))
    ),
    "own batches": lambda: DrawnBatches(OwnBatches()),
}


@pytest.mark.parametrize("kind", GENERATED)
def test_whoever_becomes_rank_0_draws_on_from_the_samplers_own_numbers(kind: str) -> None:
    plain, first, second = (GENERATED[kind]() for _ in range(3))
    expected = [plain.indices(epoch, on_a_group_of_one, Company.TOGETHER) for epoch in range(5)]
    told: list[Any] = []

    def tell(exchange: Callable[[Group], Any], key: Any) -> Any:
        told.append(exchange(SoloGroup()))
        return told[-1]

    def hear(exchange: Callable[[Group], Any], key: Any) -> Any:
        return unpack_state(*pack_state(told[-1]))

    found = []
    for epoch in range(5):
        drawing, hearing = (first, second) if epoch < 2 else (second, first)
        found.append(drawing.indices(epoch, tell, Company.TOGETHER))
        for _ in range(2):
            assert hearing.indices(epoch, hear, Company.TOGETHER) == found[-1]
    assert found == expected


def test_numbers_of_the_whole_process_are_nobodys_own() -> None:
    class Shared(list[int]):
        pass

    shared = Shared([1, 2])
    shared.first, shared.second = torch.default_generator, random._inst
    assert states_of(shared) == {}


@pytest.mark.parametrize("kind", GENERATED)
def test_a_second_try_to_agree_on_a_drawn_order_draws_nothing_anew(kind: str) -> None:
    def try_twice(exchange: Callable[[Group], Any], key: Any) -> Any:
        on_a_group_of_one(exchange, key)
        return on_a_group_of_one(exchange, key)

    once, twice = GENERATED[kind](), GENERATED[kind]()
    for epoch in range(2):
        expected = once.indices(epoch, on_a_group_of_one, Company.TOGETHER)
        assert twice.indices(epoch, try_twice, Company.TOGETHER) == expected


def test_a_checkpoint_keeps_the_loaders_and_the_samplers_numbers_each_once() -> None:
    generator, other = torch.Generator(), torch.Generator()
    drawn = RandomSampler(range(10), replacement=True, generator=generator)
    shuffled = RandomSampler(range(10), generator=generator)
    for options, expected in (
        ({"sampler": drawn, "generator": generator}, [generator]),
        ({"sampler": drawn, "generator": other}, [other, generator]),
        ({"sampler": shuffled, "generator": other}, [other]),
        ({"shuffle": True, "generator": other}, []),
    ):
        found = generators_of(DataLoader(range(10), **options))
        assert [id(one) for one in found] == [id(one) for one in expected]
    own = OwnBatches()
    assert (
        len(generators_of(DataLoader(range(10), batch_sampler=own))) == len(find_numbers(own)) == 5
    )
