# SPDX-License-Identifier: Apache-2.0
"""Which samples count, in which order, how often: read off the exchanged gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from bodies_runtime import Census, metrics, plain_batches, take_census

if TYPE_CHECKING:
    from gangline.testing import WorkerPool

SHARES = (5.0, 2.0, 1.0)


def counts(pool: WorkerPool, census: Census, workers: int = 2) -> list[torch.Tensor]:
    """Per epoch: (steps, samples), how often each sample counted in each step."""
    answers = pool.run(take_census, workers, args=(census,))
    for answer in answers:
        for epoch, first in zip(answer, answers[0], strict=True):
            assert torch.equal(epoch, first), "all workers have the same gradient"
    drawn = census.samples if census.order != "own" else math.ceil(census.samples / 2)
    found = []
    for epoch in answers[0]:
        sizes = [min(census.batch, drawn - step * census.batch) for step in range(len(epoch))]
        found.append(epoch * torch.tensor(sizes)[:, None])
    return found


def assert_each_once(epoch: torch.Tensor) -> None:
    torch.testing.assert_close(epoch.sum(0), torch.ones(epoch.shape[1]))


@pytest.mark.parametrize("order", ["sequential", "shuffled", "generator"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_each_sample_counts_once_per_epoch(
    order: str, accumulate: int, worker_pool: WorkerPool
) -> None:
    census = Census(order=order, accumulate=accumulate, shares=SHARES)
    epochs = counts(worker_pool, census, 3)
    assert len(epochs) == 2
    for epoch in epochs:
        assert_each_once(epoch)
    assert torch.equal(*epochs) is (order == "sequential")


def test_the_rest_is_dropped_when_the_loader_drops_it(worker_pool: WorkerPool) -> None:
    for epoch in counts(worker_pool, Census(drop_last=True, shares=(3.0, 1.0))):
        assert epoch.shape == (2, 23)
        torch.testing.assert_close(epoch.sum(0), torch.tensor([1.0] * 16 + [0.0] * 7))


def test_loader_processes_live_over_epochs_and_lose_nothing(worker_pool: WorkerPool) -> None:
    census = Census(num_workers=2, epochs=3, shares=(5.0, 3.0), order="shuffled")
    epochs = counts(worker_pool, census)
    assert len(epochs) == 3
    for epoch in epochs:
        assert_each_once(epoch)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_next_epoch_is_whole_when_all_break_out_of_one(
    num_workers: int, worker_pool: WorkerPool
) -> None:
    broken = Census(break_after=1, num_workers=num_workers, epochs=3, shares=SHARES)
    for epoch in counts(worker_pool, broken, 3):
        assert torch.equal(epoch, torch.tensor([[1.0] * 8 + [0.0] * 15]))


@pytest.mark.parametrize(
    ("order", "changes"),
    [
        ("shuffled", {}),
        ("shuffled", {"num_workers": 2, "drop_last": True}),
        ("generator", {}),
        ("generator", {"break_after": 2}),
        ("generator", {"num_workers": 2}),
        ("sampler generator", {}),
        ("weighted", {"break_after": 2}),
    ],
)
def test_the_order_is_the_plain_scripts(
    order: str, changes: dict[str, int], worker_pool: WorkerPool
) -> None:
    census = Census(order=order, shares=SHARES, epochs=3, **changes)  # type: ignore[arg-type]
    found = [
        [set(step.nonzero().flatten().tolist()) for step in epoch]
        for epoch in counts(worker_pool, census, 3)
    ]
    state = torch.get_rng_state()
    try:
        assert found == plain_batches(census)
    finally:
        torch.set_rng_state(state)


def test_a_generator_makes_the_order_reproducible(worker_pool: WorkerPool) -> None:
    first, again, other = (
        counts(worker_pool, Census(order="generator", seed=seed)) for seed in (7, 7, 8)
    )
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, other))


def test_a_weighted_order_is_drawn_once_for_all(worker_pool: WorkerPool) -> None:
    epochs = counts(worker_pool, Census(order="weighted", shares=(5.0, 3.0)))
    for epoch in epochs:
        torch.testing.assert_close(epoch.sum(), torch.tensor(23.0))
        torch.testing.assert_close(epoch, epoch.round())
        assert epoch[:, 0].sum() == 0, "a sample of weight 0"
    assert not torch.equal(*epochs)


def test_somebodys_own_order_is_kept_step_by_step(worker_pool: WorkerPool) -> None:
    epochs = counts(worker_pool, Census(order="own", samples=20, batch=4, shares=(3.0, 1.0)))
    for epoch in epochs:
        chosen = [set(step.nonzero().flatten().tolist()) for step in epoch]
        assert chosen == [{18, 16, 14, 12}, {10, 8, 6, 4}, {2, 0}]


# --- metrics -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 10, 25])
def test_metrics_count_each_sample_once(count: int, worker_pool: WorkerPool) -> None:
    shares = (6.0, 1.0, 1.0)
    answers = worker_pool.run(metrics, 3, args=(count, shares))
    for how in ("equal", "by share"):
        seen = [value for answer in answers for value in answer[how][0]]
        assert sorted(seen) == list(range(count))
        for answer in answers:
            assert answer[how][1] == pytest.approx((count - 1) / 2)
    for answer in answers:
        torch.testing.assert_close(answer["tensor"], torch.tensor([(1 + 4) / 3, 1.0]))
        assert math.isnan(answer["nothing"])


def test_evaluation_is_cut_by_share(worker_pool: WorkerPool) -> None:
    answers = worker_pool.run(metrics, 3, args=(100, (6.0, 1.0, 1.0)))
    sizes = [len(answer["by share"][0]) for answer in answers]
    assert sizes == pytest.approx([75, 12.5, 12.5], abs=1)
    equal = [len(answer["equal"][0]) for answer in answers]
    assert sorted(equal) == [33, 33, 34]
