# SPDX-License-Identifier: Apache-2.0
"""Running statistics: each share is normalised by itself, and statistics are averaged by share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from bodies_normalisation import (
    Normalised,
    reference,
    run_normalised,
    share_of_one,
    statistics_without_weight,
)

from gangline.testing import WorkerError

if TYPE_CHECKING:
    from gangline.testing import WorkerPool


def check(pool: WorkerPool, job: Normalised, *, poison_last: bool = False) -> None:
    expected = reference(job)
    answers = pool.run(run_normalised, len(job.shares), args=(job, poison_last))
    for states in answers:
        assert len(states) == len(expected)
        for state, wanted in zip(states, expected, strict=True):
            torch.testing.assert_close(state, wanted, rtol=0, atol=1e-9)


UNEQUAL = (((6, 2),), ((6, 2),))


@pytest.mark.parametrize("layer", ["batch", "cumulative", "instance", "in place", "assigned"])
def test_statistics_are_averaged_by_share(layer: str, worker_pool: WorkerPool) -> None:
    check(worker_pool, Normalised(layer, parts=UNEQUAL, shares=(3.0, 1.0)))


def test_statistics_are_averaged_by_share_over_three_workers(worker_pool: WorkerPool) -> None:
    job = Normalised(parts=(((8, 5, 3),), ((8, 5, 3),)), shares=(8.0, 5.0, 3.0), batch=16)
    check(worker_pool, job)


def test_statistics_are_averaged_by_share_when_the_loss_is_a_sum(worker_pool: WorkerPool) -> None:
    job = Normalised(parts=UNEQUAL, shares=(3.0, 1.0), reduction="sum")
    check(worker_pool, job)


def test_statistics_are_averaged_by_share_when_batches_are_accumulated(
    worker_pool: WorkerPool,
) -> None:
    parts = (((6, 2), (6, 2)), ((6, 2), (6, 2)))
    # Within a window a worker's micro-batches follow each other: the reference walks worker by worker.
    check(worker_pool, Normalised(parts=parts, shares=(3.0, 1.0), batch=16, accumulate=2))


@pytest.mark.parametrize("poison_last", [False, True])
def test_a_ghost_does_not_disturb_the_statistics(
    poison_last: bool, worker_pool: WorkerPool
) -> None:
    # Of the last 5 samples worker 1 would get one, which BatchNorm cannot normalise.
    job = Normalised(parts=(((6, 2),), ((5, 0),)), shares=(3.0, 1.0))
    check(worker_pool, job, poison_last=poison_last)


def test_statistics_stay_finite_when_no_sample_counts(worker_pool: WorkerPool) -> None:
    for state in worker_pool.run(statistics_without_weight, 2):
        assert bool((state["1.running_var"] > 0.1).all()), "0 would be no statistics at all"


def test_a_share_of_one_is_refused_when_the_model_has_batch_norm(worker_pool: WorkerPool) -> None:
    with pytest.raises(WorkerError, match=r"UsageError: .*BatchNorm.*global_batch=4"):
        worker_pool.run(share_of_one, 2)
