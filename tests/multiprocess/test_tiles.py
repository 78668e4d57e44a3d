# SPDX-License-Identifier: Apache-2.0
"""Tiles on the workers of a real job: trained like the uncut model; who loses one gets an error."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gangline
from gangline.spec.errors import ExchangeError
from gangline.testing import WorkerError, WorkerPool

SHAPE = (2, 3, 16, 12)


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, stride=2, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 5),
    )


def train(model: nn.Module, cut: Any, finish: Any) -> list[Tensor]:
    images = torch.randn(*SHAPE, generator=torch.Generator().manual_seed(1))
    targets = torch.tensor([1, 4])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(cut(images)), targets).backward()
        finish()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def train_tiled(dims: Any) -> tuple[tuple[int, ...], list[Tensor]]:
    gangline.init()
    torch.manual_seed(gangline.rank())
    tiled = gangline.tile(make_model(), dims=dims, input_shape=SHAPE)
    kept = tuple(stop - start for start, stop in tiled.input_box)
    return kept, train(tiled, tiled.cut, tiled.sum_gradients)


def lose_one() -> None:
    gangline.init()
    tiled = gangline.tile(make_model(), dims=2, input_shape=SHAPE)
    if gangline.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        tiled(tiled.cut(torch.zeros(SHAPE)))
    except ExchangeError:
        raise RuntimeError("the loss was noticed") from None


@pytest.fixture(scope="module")
def pool() -> Any:
    with WorkerPool() as pool:
        yield pool


@pytest.mark.parametrize("dims", [{2: [3, 1]}, {1: 2}])
def test_tiles_on_a_job_train_like_the_uncut_model(pool: WorkerPool, dims: Any) -> None:
    torch.manual_seed(0)
    expected = train(make_model(), lambda images: images, lambda: None)
    for kept, parameters in pool.run(train_tiled, 2, args=(dims,)):
        assert kept != SHAPE
        torch.testing.assert_close(parameters, expected, rtol=1e-4, atol=1e-5)


def test_who_loses_a_neighbour_gets_an_error_and_does_not_wait(pool: WorkerPool) -> None:
    with pytest.raises(WorkerError) as caught:
        pool.run(lose_one, 2)
    assert "the loss was noticed" in caught.value.failures[0]
