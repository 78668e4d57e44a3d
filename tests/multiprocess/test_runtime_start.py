# SPDX-License-Identifier: Apache-2.0
"""The start of a job: differences are named, and all workers get one worker's state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from bodies_runtime import differ, start_from_unlike_states

if TYPE_CHECKING:
    from gangline.testing import WorkerPool

DIFFERENCES = {
    "data": "data set length: 25 instead of 24. To do: give every worker the same data set",
    "global_batch": "global batch: 9 instead of 8. To do: call prepare() alike on every worker",
    "accumulate": "accumulate: 2 instead of 1",
    "reduction": "reduction: 'sum' instead of 'mean'",
    "weight": "has weight: True instead of False",
    "drop_last": "drop last: True instead of False",
    "order": "order: 'shuffled' instead of 'sequential'",
    "torch": "torch version: '1.0.0' instead of '2.",
    "stateful": "stateful: 1 of them instead of 0",
    "buffers": "buffers: ",
    "shape": "parameters: number 1 is '2.weight (1, 5) torch.float32",
    "dtype": "parameters: number 0 is '2.bias (1,) torch.float64",
    "frozen": "parameters: number 0 is '2.bias (1,) torch.float32 (1,) frozen' instead of ",
    "layers": "parameters: number 0 is '3.bias",
    "optimizer": "optimizer",
    "shares": "shares",
    "allocation": "allocation: 'equal' instead of 'balanced'. To do: call prepare() alike on every",
    "sync": "sync: 'flexible' instead of 'full'",
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_all_workers_name_the_one_that_differs(what: str, worker_pool: WorkerPool) -> None:
    messages = worker_pool.run(differ, 3, args=(what, 2))
    for message in messages:
        assert message.startswith("MismatchError: worker 2 differs from worker 0 in ")
        assert DIFFERENCES[what] in message
        assert "To do: " in message
    assert len(set(messages)) == 1


def test_all_workers_start_when_none_differs(worker_pool: WorkerPool) -> None:
    assert worker_pool.run(differ, 3, args=("nothing", 2)) == ["no error"] * 3


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other)


def test_all_workers_start_from_the_state_of_worker_0(worker_pool: WorkerPool) -> None:
    answers = worker_pool.run(start_from_unlike_states, 3)
    truth = answers[0][0]
    for before, after in answers:
        for what, expected in truth.items():
            assert same(after[what], expected), f"{what} is not worker 0's"
        assert before is answers[0][0] or not same(before, truth), "they differed before"
