# SPDX-License-Identifier: Apache-2.0
"""Gradients that somebody else exchanges too are refused by name; everything else is left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F
from bodies_foreign import Job, exchange_alone, exchange_once, exchange_twice

if TYPE_CHECKING:
    from pathlib import Path

    from gangline.testing import WorkerPool

PUT_ON = {
    "ddp": "DistributedDataParallel (torch.nn.parallel.distributed) was put around",
    "ddp_inside": "DistributedDataParallel (torch.nn.parallel.distributed) was put around",
    "ddp_around_a_wrapper": "DistributedDataParallel (torch.nn.parallel.distributed) was put around",
    "composable": "DistributedDataParallel (torch.nn.parallel.distributed) was put around",
    "sharded": "was sharded after prepare(), as fully_shard does",
    "deepspeed": "DeepSpeedEngine (deepspeed.runtime) was put around the prepared parameter",
    "horovod": "an optimizer of horovod (SGD) updates the prepared parameter",
    "horovod_hook": "a hook of horovod was put on the prepared parameter 'head.bias'",
    "zero": "an optimizer of torch.distributed.optim (ZeroRedundancyOptimizer) updates",
    "own_hook": "allreduce was called",
    "own_callback": "allreduce was called",
}


@pytest.mark.parametrize("kind", PUT_ON)
def test_a_second_exchange_is_refused_by_name(
    kind: str, tmp_path: Path, worker_pool: WorkerPool
) -> None:
    for message in worker_pool.run(exchange_twice, 2, args=(kind, tmp_path, 2)):
        assert message.startswith("UnsupportedError: ")
        assert PUT_ON[kind] in message
        assert "gangline exchanges the gradients itself" in message


def test_a_hook_that_exchanges_is_found_in_the_users_code(
    tmp_path: Path, worker_pool: WorkerPool
) -> None:
    message, _ = worker_pool.run(exchange_twice, 2, args=("own_hook", tmp_path, 2))
    assert "bodies_foreign.py:" in message


def test_a_wrapper_that_was_put_on_before_is_refused(
    tmp_path: Path, worker_pool: WorkerPool
) -> None:
    for message in worker_pool.run(exchange_twice, 2, args=("ddp", tmp_path, 2, True)):
        assert PUT_ON["ddp"] in message


def test_what_exchanges_nothing_of_ours_is_left_alone(
    tmp_path: Path, worker_pool: WorkerPool
) -> None:
    answers = worker_pool.run(exchange_once, 2, args=(tmp_path, 2))
    state = torch.get_rng_state()
    torch.manual_seed(0)
    plain = Job()
    torch.set_rng_state(state)
    for x, y in plain.loader:
        plain.optimizer.zero_grad()
        F.mse_loss(plain.model(x), y).backward()
        plain.optimizer.step()
    expected = torch.cat([one.detach().flatten() for one in plain.model.parameters()])
    for answer in answers:
        torch.testing.assert_close(torch.tensor(answer), expected)


def test_a_job_of_one_may_be_wrapped(tmp_path: Path, worker_pool: WorkerPool) -> None:
    assert worker_pool.run(exchange_alone, 1, args=(tmp_path,)) == ["no error"]
