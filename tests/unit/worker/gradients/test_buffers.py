# SPDX-License-Identifier: Apache-2.0
"""Buffers that are averaged: exactly, and by few calls, of which a device takes few."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gangline.worker.gradients.buffers import Buffers

FREE = {"detach", "view", "_unsafe_view", "split_with_sizes", "slice", "alias", "reshape"}
"""These only look at memory in another way."""


class Calls(TorchDispatchMode):
    """Counts what is asked of a device."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in FREE:
            self.count[name] += 1
        return func(*args, **(kwargs or {}))


def normalised(layers: int) -> nn.Module:
    """A model with two buffers for each layer, all different, and one of double precision."""
    model = nn.Sequential(*(nn.BatchNorm1d(3) for _ in range(layers)))
    model.register_buffer("wide", torch.tensor([[1 / 3, 2 / 3]], dtype=torch.float64))
    for number, buffer in enumerate(model.buffers()):
        if buffer.is_floating_point():
            buffer.add_(number / 7)
    return model


def averaged(model: nn.Module, weight: float) -> tuple[Buffers, Tensor]:
    buffers = Buffers([model])
    chosen = [True] * len(buffers.all)
    flat = buffers.collect(chosen, weight)
    buffers.restore(chosen, flat)
    return buffers, flat


@pytest.mark.parametrize("weight", [0.25, 1 / 3])
def test_buffers_are_weighted_in_double_precision_and_come_back_in_their_own(weight: float) -> None:
    model = normalised(3)
    expected = [b.detach().double() * weight for b in Buffers([model]).all]
    buffers, flat = averaged(model, weight)
    assert flat.equal(torch.cat([one.reshape(-1) for one in expected]))
    for buffer, value in zip(buffers.all, expected, strict=True):
        assert buffer.equal(value.to(buffer.dtype))


def test_statistics_of_a_ghost_count_nothing_whatever_they_are() -> None:
    model = nn.BatchNorm1d(2)
    assert model.running_mean is not None
    model.running_mean.fill_(float("inf"))
    _, flat = averaged(model, 0.0)
    assert flat.equal(torch.zeros(4, dtype=torch.float64))


def test_many_buffers_are_as_few_calls_as_few() -> None:
    counts = []
    for layers in (2, 50):
        model = normalised(layers)
        with Calls() as calls:
            averaged(model, 0.5)
        counts.append(calls.count)
    assert counts[0] == counts[1]
