# SPDX-License-Identifier: Apache-2.0
"""`sync_batchnorm=True`: with any shares, the result is that of one process on the global batch."""

from __future__ import annotations

import random
from statistics import median
from typing import TYPE_CHECKING

import pytest
import torch
from bodies_sync_batchnorm import (
    LAYERS,
    Synced,
    build,
    closed,
    compiled,
    copies_are_plain,
    data,
    drift_by_a_layer,
    drift_by_a_pass,
    evaluation_is_local,
    one_is_slow,
    outside_of_steps_is_local,
    reference,
    run_synced,
    statistics_without_gradients,
)

from gangline.eventlog import read_run
from gangline.spec.event import StepDone
from gangline.testing import WorkerError

if TYPE_CHECKING:
    from bodies_sync_batchnorm import Update

    from gangline.testing import WorkerPool


def check(answers: list[list[Update]], job: Synced) -> None:
    expected = reference(job, answers)
    for updates in answers:
        assert len(updates) == len(expected)
        for update, wanted in zip(updates, expected, strict=True):
            torch.testing.assert_close(update.gradients, wanted.gradients, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(update.state, wanted.state, rtol=1e-9, atol=1e-9)


def run(pool: WorkerPool, job: Synced, transport: str | None = None) -> None:
    check(pool.run(run_synced, len(job.shares), args=(job,), transport=transport), job)


@pytest.mark.parametrize("layer", LAYERS)
def test_any_layer_equals_one_process(layer: str, worker_pool: WorkerPool) -> None:
    run(worker_pool, Synced(layer))


@pytest.mark.parametrize("loss", ["mean", "sum", "weighted"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_any_loss_equals_one_process(loss: str, accumulate: int, worker_pool: WorkerPool) -> None:
    run(worker_pool, Synced("1d", loss=loss, accumulate=accumulate, batch=9))


@pytest.mark.parametrize("loss", ["mean", "sum", "weighted"])
def test_a_ghost_counts_nothing_whatever_it_holds(loss: str, worker_pool: WorkerPool) -> None:
    # Of the last 4 samples somebody gets none; and a share of 1 cannot be cut into two parts.
    job = Synced("1d", shares=(6.0, 1.0, 1.0), accumulate=2, loss=loss, poison=True, samples=12)
    answers = worker_pool.run(run_synced, 3, args=(job,))
    assert any(() in update.samples for updates in answers for update in updates), "no ghost"
    check(answers, job)


def test_frozen_weights_equal_one_process(worker_pool: WorkerPool) -> None:
    run(worker_pool, Synced(freeze=True))


@pytest.mark.parametrize("transport", ["wire-tcp", "gloo"])
def test_any_transport_equals_one_process(transport: str, worker_pool: WorkerPool) -> None:
    run(worker_pool, Synced(), transport)


def test_a_job_of_one_equals_plain_torch_to_the_bit(worker_pool: WorkerPool) -> None:
    job = Synced(shares=(1.0,))
    (updates,) = worker_pool.run(run_synced, 1, args=(job,))
    # In a worker, too: a product of matrices depends on the number of threads, in its last bits.
    (plain,) = worker_pool.run(reference, 1, args=(job, [updates]))
    for update, wanted in zip(updates, plain, strict=True):
        for name, value in wanted.state.items():
            assert torch.equal(update.state[name], value), name


def test_random_jobs_equal_one_process(worker_pool: WorkerPool) -> None:
    chance = random.Random(11)
    for _ in range(8):
        workers = chance.choice([2, 3, 4])
        batch = chance.randrange(workers + 2, 14)
        job = Synced(
            chance.choice(list(LAYERS)),
            shares=tuple(chance.uniform(0.1, 4) for _ in range(workers)),
            samples=batch * 2 + chance.choice([0, 2, 3]),
            batch=batch,
            epochs=1,
            accumulate=chance.choice([1, 1, 2, 3]),
            loss=chance.choice(["mean", "sum", "weighted"]),
            poison=chance.random() < 0.5,
        )
        run(worker_pool, job)


def test_copies_and_saved_models_do_not_exchange(worker_pool: WorkerPool) -> None:
    job = Synced()
    for answer in worker_pool.run(copies_are_plain, 3, args=(job,)):
        assert answer["classes"] == [type(module).__name__ for module in build(job).modules()]


def test_evaluation_does_not_exchange(worker_pool: WorkerPool) -> None:
    first, *_ = worker_pool.run(evaluation_is_local, 3, args=(Synced(),))
    assert all(output.isfinite().all() for output in first)


def test_passes_outside_of_steps_do_not_exchange(worker_pool: WorkerPool) -> None:
    worker_pool.run(outside_of_steps_is_local, 3, args=(Synced(),))


def test_statistics_are_those_of_all_samples_when_nothing_is_trained(
    worker_pool: WorkerPool,
) -> None:
    job = Synced("cumulative", samples=16, batch=16)
    first, *others = worker_pool.run(statistics_without_gradients, 3, args=(job,))
    model = build(job)
    model(data(job).tensors[0])
    torch.testing.assert_close(first, model.state_dict(), rtol=1e-9, atol=1e-9)
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=0)


def test_layers_are_torch_s_again_when_the_job_is_over(worker_pool: WorkerPool) -> None:
    for answer in worker_pool.run(closed, 3, args=(Synced(),)):
        assert answer == {"is_wrapped": True, "is_restored": True}


def test_a_compiled_model_equals_one_process(worker_pool: WorkerPool) -> None:
    job = Synced(shares=(2.0, 1.0), samples=16, epochs=1)
    check(worker_pool.run(compiled, 2, args=(job,), deadline_s=90), job)


def test_waiting_for_statistics_is_no_computing(worker_pool: WorkerPool) -> None:
    """Else all workers would seem as slow as the slowest, and shares could not follow speeds."""
    worker_pool.run(one_is_slow, 3, args=(Synced(epochs=1, samples=40), 0.2))
    steps = [event for event in read_run(worker_pool.run_dir) if isinstance(event, StepDone)]
    computed, exchanged = (
        [median(getattr(e, name) for e in steps if e.worker == worker) for worker in range(3)]
        for name in ("compute_s", "exchange_s")
    )
    assert computed[1] > 0.2
    assert max(computed[0], computed[2]) < 0.1
    assert min(exchanged[0], exchanged[2]) > 0.1


@pytest.mark.parametrize("body", [drift_by_a_layer, drift_by_a_pass])
@pytest.mark.parametrize("transport", ["wire", "wire-tcp"])
def test_loops_that_drift_apart_are_named(
    body: object, transport: str, worker_pool: WorkerPool
) -> None:
    match = r"(?s)Mismatch.*drifted apart while they exchange batch statistics.*pass of layer '\d'"
    with pytest.raises(WorkerError, match=match):
        worker_pool.run(body, 3, args=(Synced(),), transport=transport)
