# SPDX-License-Identifier: Apache-2.0
"""Loops without a DataLoader or an optimizer, with loaders of other kinds, with state of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from bodies_own_loops import (
    OWN_LOOPS,
    Own,
    carry_wrongly,
    evaluate_buckets,
    lbfgs,
    lbfgs_or_message,
    run_own,
    sharp_message,
)

if TYPE_CHECKING:
    from gangline.testing import WorkerPool

TOLERANCE = 1e-12
NO_WINDOWS = {"reinforce", "bare_parameters", "sharp"}
"""Loops that do not use our accumulation windows."""


def check(pool: WorkerPool, own: Own) -> None:
    expected = run_own(Own(own.name))
    assert own.shares is not None
    histories = pool.run(run_own, len(own.shares), args=(own,))
    for history in histories:
        assert history.shape == expected.shape
        torch.testing.assert_close(history, expected, rtol=0, atol=TOLERANCE)
        assert torch.equal(history, histories[0]), "members must be bit-equal"


@pytest.mark.parametrize(
    "shares", [pytest.param((1.0,), marks=pytest.mark.slow), (5.0, 1.0, 2.0)], ids=str
)
@pytest.mark.parametrize("name", OWN_LOOPS)
def test_every_loop_is_exact_when_shares_are_unequal(
    name: str, shares: tuple[float, ...], worker_pool: WorkerPool
) -> None:
    check(worker_pool, Own(name, shares))


@pytest.mark.parametrize("name", sorted(set(OWN_LOOPS) - NO_WINDOWS))
def test_every_loop_is_exact_when_it_accumulates(name: str, worker_pool: WorkerPool) -> None:
    check(worker_pool, Own(name, (5.0, 2.0), accumulate=3))


def test_every_sample_of_a_batch_sampler_is_evaluated_once(worker_pool: WorkerPool) -> None:
    seen = worker_pool.run(evaluate_buckets, 3)
    assert sorted(value for part in seen for batch in part for value in batch) == list(range(21))
    assert [len(part) for part in seen] == [4, 3, 3], "one batch has a single sample"


def test_lbfgs_works_in_a_job_of_one(worker_pool: WorkerPool) -> None:
    expected = lbfgs(is_plain=True)
    (found,) = worker_pool.run(lbfgs, 1, args=(False,))
    assert torch.equal(found, expected)


def test_lbfgs_is_refused_by_all_when_there_are_several_workers(worker_pool: WorkerPool) -> None:
    for message in worker_pool.run(lbfgs_or_message, 2):
        assert message.startswith("UnsupportedError: LBFGS evaluates the loss several times")
        assert message.endswith("or train with one worker")


def test_an_optimizer_inside_of_a_prepared_one_is_asked_for_by_name(
    worker_pool: WorkerPool,
) -> None:
    for message in worker_pool.run(sharp_message, 2):
        assert message.startswith("UsageError: the SGD optimizer that the prepared Sharp has")
        assert "gangline.prepare(model, optimizer, optimizer.base_optimizer, loader)" in message


MISUSES = {
    "not prepared": "is not part of a model that prepare() was given",
    "outside": "was written outside of the loop over the prepared loader",
    "late": "was written after backward(), in whose exchange",
    "twice": "the state of sample 0 was written by 2 workers in one step",
}


@pytest.mark.parametrize("how", MISUSES)
def test_states_that_would_not_reach_the_others_are_named(
    how: str, worker_pool: WorkerPool
) -> None:
    for message in worker_pool.run(carry_wrongly, 2, args=(how,)):
        assert message.startswith("UsageError: ")
        assert MISUSES[how] in message
