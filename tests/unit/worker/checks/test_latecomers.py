# SPDX-License-Identifier: Apache-2.0
"""What models get after they were prepared is found, and named where workers differ in it."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from gangline.worker.checks.latecomers import OwnTensors


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 3), nn.Linear(3, 2)
        self.register_buffer("cache", None)
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))

    def grow(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.head = nn.Linear(3, 2)
        self.cache = torch.randn(4, 4)
        self.body.register_buffer("seen", torch.randint(9, (5,)))


GROWN = {
    "parameter 'head.weight'",
    "parameter 'head.bias'",
    "buffer 'cache'",
    "buffer 'body.seen'",
}


def checksums_of(own: OwnTensors) -> dict[str, int]:
    own.look()
    return dict(own.checksums)


def test_what_was_there_before_is_nothing_new() -> None:
    own = OwnTensors([Model()])
    assert set(checksums_of(own)) == {"count"}


def test_what_comes_later_is_compared_by_its_values() -> None:
    found = []
    for seed in (1, 1, 2):
        model = Model()
        own = OwnTensors([model])
        model.grow(seed)
        found.append(checksums_of(own))
    assert set(found[0]) == {"count", *GROWN}
    assert found[0] == found[1]
    assert all(found[0][name] != found[2][name] for name in GROWN)


def test_of_several_models_each_has_its_number() -> None:
    model = Model()
    own = OwnTensors([nn.Linear(2, 1), model])
    model.cache = torch.ones(2)
    assert set(checksums_of(own)) == {"1.count", "buffer '1.cache'"}


@pytest.mark.parametrize(
    "values",
    [
        torch.linspace(-1, 1, 100),
        torch.full((3, 3), 0.2, dtype=torch.bfloat16),
        torch.polar(torch.ones(5), torch.arange(5.0)),
        torch.zeros(0),
        torch.zeros(4),
    ],
)
def test_rounding_makes_no_difference(values: torch.Tensor) -> None:
    found = []
    for factor in (1.0, 1 - 1e-6):
        model = Model()
        own = OwnTensors([model])
        model.cache = values * factor
        found.append(checksums_of(own))
    assert found[0] == found[1]


def test_odd_kinds_of_tensors_are_passed_over() -> None:
    model = Model()
    own = OwnTensors([model])
    model.lazy = nn.LazyLinear(2)
    model.cache = torch.eye(3).to_sparse()
    assert checksums_of(own)["buffer 'cache'"] == 0


def test_each_kind_is_said_once_and_on_the_main_worker_only() -> None:
    own = OwnTensors([Model()])
    own.look()
    own.warn_of(["count", "buffer 'cache'"], is_main=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            own.warn_of(["count", "buffer 'cache'"], is_main=True)
    numbers, late = (str(one.message) for one in caught)
    assert "buffers of whole numbers: 'count'. " in numbers
    assert "by replacing a module or by filling what was None: buffer 'cache'. " in late
