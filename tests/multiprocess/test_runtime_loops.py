# SPDX-License-Identifier: Apache-2.0
"""Loops with something odd in them: exact where they can be, an error that says why where not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from bodies_corners import Corner, run_corner
from bodies_runtime import drift, mistake, sparse

if TYPE_CHECKING:
    from gangline.testing import WorkerPool

SHARES = (5.0, 2.0, 1.0)


def check(pool: WorkerPool, corner: Corner, *, atol: float = 1e-9) -> None:
    plain = Corner(corner.name, None, corner.samples, corner.batch, dtype=corner.dtype)
    expected = run_corner(plain)
    assert corner.shares is not None
    histories = pool.run(run_corner, len(corner.shares), args=(corner,))
    for history in histories:
        torch.testing.assert_close(history, expected, rtol=0, atol=atol)
        assert torch.equal(history, histories[0]), "members must be bit-equal"


@pytest.mark.parametrize("unit_bytes", [1, 200, 1 << 20])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_training_is_exact_for_any_size_of_units(
    unit_bytes: int, dtype: torch.dtype, worker_pool: WorkerPool
) -> None:
    corner = Corner("plain", SHARES, unit_bytes=unit_bytes, dtype=dtype)
    check(worker_pool, corner, atol=1e-9 if dtype == torch.float64 else 1e-5)


def test_training_in_bfloat16_stays_near(worker_pool: WorkerPool) -> None:
    check(worker_pool, Corner("plain", SHARES, dtype=torch.bfloat16), atol=0.05)


def test_training_under_autocast_stays_near(worker_pool: WorkerPool) -> None:
    check(worker_pool, Corner("autocast", SHARES, dtype=torch.float32), atol=0.02)


def test_a_ghosts_infinite_gradient_does_not_count(worker_pool: WorkerPool) -> None:
    check(worker_pool, Corner("poisoned_ghost", SHARES, samples=17))


def test_one_workers_overflow_skips_the_step_of_all(worker_pool: WorkerPool) -> None:
    check(worker_pool, Corner("overflow", SHARES))


@pytest.mark.parametrize("unit_bytes", [200, 1 << 20])
@pytest.mark.parametrize(
    "name",
    ["closure", "step_after_no_sync", "step_inside_no_sync", "failed_passes", "own_optimizer"],
)
def test_odd_loops_are_exact(name: str, unit_bytes: int, worker_pool: WorkerPool) -> None:
    check(worker_pool, Corner(name, SHARES, unit_bytes=unit_bytes))


# --- loops that drift apart --------------------------------------------------------------------------

DRIFTED = "MismatchError: the workers' loops have drifted apart: in one exchange they are at "
ADVICE = "All workers must make the same backward passes for every batch"


@pytest.mark.parametrize("how", ["extra_backward", "missing_backward", "early_break"])
def test_loops_that_drift_apart_end_with_a_message(how: str, worker_pool: WorkerPool) -> None:
    for message in worker_pool.run(drift, 2, args=(how,)):
        assert message.startswith(DRIFTED)
        assert ADVICE in message


@pytest.mark.parametrize("how", ["own_step", "own_gradient", "own_model"])
def test_parameters_that_have_become_different_end_with_a_message(
    how: str, worker_pool: WorkerPool
) -> None:
    for message in worker_pool.run(drift, 2, args=(how,)):
        assert message.startswith("MismatchError: at the end of epoch ")
        assert "the workers have different parameters" in message


@pytest.mark.parametrize(
    ("how", "places"),
    [
        (
            "early_mean",
            "the workers' loops differ: at the same time worker 0 is in backward() after 1 step "
            "(epoch 0), worker 1 is in gangline.mean(a number) after 1 step (epoch 0). ",
        ),
        (
            "other_shapes",
            "the workers do not make the same call: worker 0: gangline.mean([2]), worker 1: "
            "gangline.mean([5]). ",
        ),
    ],
)
def test_exchanges_that_do_not_match_end_with_an_error(
    how: str, places: str, worker_pool: WorkerPool
) -> None:
    for message in worker_pool.run(drift, 2, args=(how,)):
        assert message.startswith(f"MismatchError: {places}All workers must make the same ")


def test_learning_rates_that_differ_end_with_a_message(worker_pool: WorkerPool) -> None:
    for message in worker_pool.run(drift, 2, args=("other_rate",)):
        assert message == (
            "MismatchError: the learning rates differ between workers at step 1: a scheduler follows "
            "a value that each worker computes for itself. Give it the mean over all workers, e.g. "
            "scheduler.step(gangline.mean(loss, weight=num_samples))"
        )


def test_parameters_that_are_frozen_on_one_worker_only_are_named(worker_pool: WorkerPool) -> None:
    for message in worker_pool.run(drift, 2, args=("own_freezing",)):
        assert message.startswith(
            "MismatchError: parameter 'weight' is frozen on some workers, and trained on others. Set "
            "requires_grad of the same parameters, before the same step, on all workers"
        )


# --- mistakes ----------------------------------------------------------------------------------------

MISTAKES = {
    "before_the_first_batch": "backward() was called before the prepared loader handed out a batch",
    "after_the_last_batch": "backward() was called when the loop was done with every batch",
    "zipped": "after it has begun another one: every iteration is an epoch of its own",
    "unprepared": "a Adam optimizer updates the prepared model, and prepare() does not know it",
    "step_in_backward": "the step() of a SGD optimizer was called inside of backward()",
    "other_dtype": "call model.to(...) before prepare()",
    "added_group": "as add_param_group does: add all groups first",
    "assigned": "load with assign=False, or load first and prepare afterwards",
    "kept_backward": "UnsupportedError: ",
    "graph_kept": "backward(create_graph=True) keeps a graph in the gradient of parameter",
    "same_form": "no error",
    "another_order": "UsageError: the loop computes the batch of step 0 after the batch of step 1, ",
    "several_batches": "UsageError: one backward() is called for the losses of several batches",
}


@pytest.mark.parametrize("which", MISTAKES)
@pytest.mark.filterwarnings("default:Using backward.. with create_graph")
def test_mistakes_in_the_loop_are_named(which: str, worker_pool: WorkerPool) -> None:
    for message in worker_pool.run(mistake, 2, args=(which,)):
        assert MISTAKES[which] in message


def test_sparse_gradients_are_refused_by_all_workers(worker_pool: WorkerPool) -> None:
    for message in worker_pool.run(sparse, 2):
        assert message.startswith(
            "UnsupportedError: the gradient of parameter '0.weight' is sparse"
        )
