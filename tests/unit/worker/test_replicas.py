# SPDX-License-Identifier: Apache-2.0
"""Parameters that have become different are noticed, those that differ by rounding are not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gangline.spec.errors import MismatchError
from gangline.worker.checks.replicas import Replicas


def added(models: list[nn.Module]) -> list[float]:
    return torch.stack([Replicas([model]).figures() for model in models]).sum(0).tolist()


def model(change: float = 0.0, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 7))
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.add_(change * torch.randn_like(parameter) * parameter.std())
    return one.to(dtype)


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("change", [0.0, 1e-6, 1e-5])
def test_rounding_is_no_difference(workers: int, change: float) -> None:
    models = [model(), *(model(change) for _ in range(workers - 1))]
    Replicas(models[:1]).check(added(models), size=workers, epoch=0)


@pytest.mark.parametrize("workers", [2, 5])
def test_a_worker_that_went_its_own_way_is_noticed(workers: int) -> None:
    models = [*(model() for _ in range(workers - 1)), model(0.1)]
    with pytest.raises(MismatchError, match="at the end of epoch 3 the workers have different"):
        Replicas(models[:1]).check(added(models), size=workers, epoch=3)


def test_half_precision_may_differ_more() -> None:
    models = [model(dtype=torch.bfloat16), model(0.004, dtype=torch.bfloat16)]
    Replicas(models[:1]).check(added(models), size=2, epoch=0)


def test_a_spoilt_model_is_spoilt_everywhere() -> None:
    models = [model(float("nan")), model(float("nan"))]
    Replicas(models[:1]).check(added(models), size=2, epoch=0)
