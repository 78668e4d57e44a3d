# SPDX-License-Identifier: Apache-2.0
"""Running statistics: each share is normalised by itself, and statistics are averaged by share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from bodies_normalisation import (
    Normalised,
    count_whole_numbers,
    grow_after_prepare,
    reference,
    run_normalised,
    share_of_one,
    shares_of_unlike_workers,
    statistics_without_weight,
)

from gangline.eventlog import read_run
from gangline.spec.event import Decision, ViewAdopted
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


def test_no_worker_has_too_few_samples_when_speeds_are_unlike(worker_pool: WorkerPool) -> None:
    """By speed the slow worker would get 2 of 32 samples, or 3. With 8 it may be left out instead."""
    answers = worker_pool.run(shares_of_unlike_workers, 3, args=(None, 2))
    adopted = [e for e in read_run(worker_pool.run_dir) if isinstance(e, ViewAdopted)]
    together = [event.shares for event in adopted if len(event.shares) == 3]
    assert together[-1][2] == 8, together
    assert min(min(event.shares) for event in adopted) == 8
    assert answers == [[], [], []]


def test_small_shares_that_somebody_chose_are_kept_and_warned_of(worker_pool: WorkerPool) -> None:
    first, *others = worker_pool.run(shares_of_unlike_workers, 3, args=((28.0, 2.0, 2.0), -1))
    (warning,) = first
    assert (
        "Sequential has 1 BatchNorm layer, and the shares are 28, 2, 2 of a batch of 32" in warning
    )
    assert others == [[], []]
    events = list(read_run(worker_pool.run_dir))
    (adopted,) = (event for event in events if isinstance(event, ViewAdopted))
    assert adopted.shares == [28, 2, 2]
    decisions = [e for e in events if isinstance(e, Decision) and e.what == "small_shares"]
    assert [decision.reason for decision in decisions] == [warning]


def test_a_share_of_one_is_refused_when_the_model_has_batch_norm(worker_pool: WorkerPool) -> None:
    with pytest.raises(WorkerError, match=r"UsageError: .*BatchNorm.*global_batch=4"):
        worker_pool.run(share_of_one, 2)


def test_whole_numbers_that_differ_between_workers_are_named_once(worker_pool: WorkerPool) -> None:
    first, *others = worker_pool.run(count_whole_numbers, 2, args=(True, (2.0, 1.0)))
    (warning,) = first
    assert "buffers of whole numbers: 'samples'. " in warning
    assert "gangline.sum(" in warning
    assert "gangline.SampleState" in warning
    assert others == [[]]


@pytest.mark.parametrize(
    ("counts_samples", "shares"), [(False, (2.0, 1.0)), (True, (1.0, 1.0)), (True, (1.0,))]
)
def test_whole_numbers_that_are_the_same_everywhere_are_nothing_to_warn_of(
    counts_samples: bool, shares: tuple[float, ...], worker_pool: WorkerPool
) -> None:
    answers = worker_pool.run(count_whole_numbers, len(shares), args=(counts_samples, shares))
    assert answers == [[]] * len(shares)


def test_what_a_model_gets_after_prepare_is_named_where_workers_differ(
    worker_pool: WorkerPool,
) -> None:
    first, *others = worker_pool.run(grow_after_prepare, 2, args=(False,))
    (warning,) = first
    assert "None: buffer 'scale', parameter 'last.weight', parameter 'last.bias'. " in warning
    assert others == [[]]


def test_what_a_model_gets_after_prepare_may_be_the_same_everywhere(
    worker_pool: WorkerPool,
) -> None:
    assert worker_pool.run(grow_after_prepare, 2, args=(True,)) == [[], []]
