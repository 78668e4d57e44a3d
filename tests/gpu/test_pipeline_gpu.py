# SPDX-License-Identifier: Apache-2.0
"""Pipelines over a GPU and CPUs: exact, whichever device holds which stage."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

sys.path.append(str(Path(__file__).parent.parent / "multiprocess"))

from bodies_pipeline import alone, train

import gangline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.testing import WorkerPool

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def train_on(devices: list[str], options: dict[str, Any]) -> dict[str, Any]:
    """As `train`; each worker's device is one of these. A worker keeps its device in later jobs."""
    from gangline.worker.environment import find_launch

    launch = find_launch(os.environ)
    worker = launch.worker if launch is not None else 0
    if devices[worker] == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    found = train("traced", options)
    return {**found, "device": gangline.device().type}


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_pipeline_over_a_gpu_and_a_cpu_is_exact(worker_pool: WorkerPool, schedule: str) -> None:
    devices = ["cpu", "cuda"]
    options = {"stages": 2, "micro_batches": 3, "schedule": schedule}
    results = worker_pool.run(train_on, 2, args=(devices, options))
    assert [one["device"] for one in results] == devices
    expected = alone("traced")
    for result in results:
        assert result["losses"] == pytest.approx(expected["losses"], rel=1e-9)
        for name, value in expected["state"].items():
            torch.testing.assert_close(result["state"][name], value, rtol=1e-8, atol=1e-9)
