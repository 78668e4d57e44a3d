# SPDX-License-Identifier: Apache-2.0
"""Pipelines train to what one process in plain torch makes of the same batches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

sys.path.append(str(Path(__file__).parent))

from bodies_pipeline import BATCH, EPOCHS, SAMPLES, alone, stashed, train, train_as

from cases import quick_of
from gangline.eventlog import read_run
from gangline.observe.ledger import read_ledger
from gangline.testing import WorkerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.testing import WorkerPool

TOLERANCE = 1e-10


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def assert_alike(results: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    for result in results:
        assert result["losses"] == pytest.approx(expected["losses"], rel=TOLERANCE)
        assert result["state"].keys() == expected["state"].keys()
        for name, value in expected["state"].items():
            torch.testing.assert_close(
                result["state"][name], value, rtol=TOLERANCE, atol=TOLERANCE, msg=name
            )


CASES: list[tuple[int, str, dict[str, Any]]] = [
    (1, "traced", {"micro_batches": 3}),
    (2, "traced", {"stages": 2, "micro_batches": 3}),
    (2, "sequential", {"stages": 2, "schedule": "gpipe", "micro_batches": 4, "recompute": True}),
    (2, "sequential", {"stages": 2, "micro_batches": 2, "copies": False}),
    (2, "sequential", {"stages": 1}),
    (3, "traced", {"stages": 3, "micro_batches": 8}),
    (3, "sequential", {"reduction": "sum", "stages": 3, "micro_batches": 2}),
    (3, "sequential", {"stages": 3, "schedule": "gpipe", "micro_batches": 4}),
    (4, "traced", {"stages": 2, "micro_batches": 2}),
]
QUICK = (0, 1, 2, 7)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("case", quick_of(range(len(CASES)), quick=QUICK))
def test_the_result_is_that_of_one_process(worker_pool: WorkerPool, case: int) -> None:
    workers, kind, options = CASES[case]
    results = worker_pool.run(train, workers, args=(kind, options))
    assert_alike(results, alone(kind, reduction=options.get("reduction", "mean")))
    stages = results[0]["stages"]
    assert all(len(some) == options.get("stages", 1) for some in stages)
    assert sum(len(some) for some in stages) <= workers
    ledger = read_ledger(read_run(worker_pool.run_dir, notes=[]))
    ledger.check(length=SAMPLES, epochs=EPOCHS)
    assert ledger.num_steps == EPOCHS * -(-SAMPLES // BATCH)


BESIDE: list[Any] = [
    [([(0, 2), (1, 4)], 3, 2), ([(2, 6)], 5, 1)],
    [([(3, 1), (0, 5)], 5, 4), ([(1, 4), (2, 2)], 3, 2)],
]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("case", quick_of([0, 1], quick=[1]))
def test_pipelines_side_by_side_may_be_cut_at_unlike_places(
    worker_pool: WorkerPool, case: int
) -> None:
    cuts = BESIDE[case]
    counts = {worker: count for stages, _, _ in cuts for worker, count in stages}
    results = worker_pool.run(train_as, len(counts), args=("traced", cuts))
    assert_alike(results, alone("traced"))
    assert [len(one["held"]) for one in results] == [counts[n] for n in range(len(counts))]
    read_ledger(read_run(worker_pool.run_dir, notes=[])).check(length=SAMPLES, epochs=EPOCHS)


def test_what_fits_nowhere_is_refused_on_all_workers_before_it_is_tried(
    worker_pool: WorkerPool,
) -> None:
    with pytest.raises(WorkerError) as caught:
        worker_pool.run(train, 2, args=("traced", {}, [1e3, 1e3]))
    assert len(caught.value.failures) == 2
    for text in caught.value.failures.values():
        assert "the model does not fit" in text


@pytest.mark.usefixtures("double")
def test_running_statistics_and_dropout_do_not_depend_on_the_cut(worker_pool: WorkerPool) -> None:
    """With the same micro-batches: they are normalised by themselves, and draw by their samples."""
    options = {"micro_batches": 2}
    one = worker_pool.run(train, 1, args=("normalised", options))[0]
    cut = worker_pool.run(train, 2, args=("normalised", {**options, "stages": 2}))
    again = worker_pool.run(
        train,
        2,
        args=("normalised", {**options, "stages": 2, "schedule": "gpipe", "recompute": True}),
    )
    assert_alike([*cut, *again], one)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("workers", "stages"), quick_of([(1, 1), (2, 2), (3, 3)], quick=[(2, 2)]))
def test_pipedream_updates_by_the_weights_of_the_forward_pass(
    worker_pool: WorkerPool, workers: int, stages: int
) -> None:
    options = {"schedule": "pipedream", "stages": stages, "micro_batches": 3}
    results = worker_pool.run(train, workers, args=("sequential", options))
    (found,) = results[0]["stages"]
    assert_alike(results, stashed([start for _, start, _ in found], 3))
    worst = max(
        abs(a - b) for a, b in zip(results[0]["losses"], alone("sequential")["losses"], strict=True)
    )
    assert worst > 1e-4  # it is another training than that of one process


@pytest.mark.usefixtures("double")
def test_a_share_that_does_not_fit_at_once_is_done_in_several_passes(
    worker_pool: WorkerPool,
) -> None:
    # States and copies take 8.2 kB, and each sample some hundred bytes.
    results = worker_pool.run(train, 1, args=("sequential", {}, [11e3]))
    assert results[0]["micro_batches"][0] > 1
    assert_alike(results, alone("sequential"))


@pytest.mark.usefixtures("double")
def test_a_model_without_values_is_made_where_its_layers_are(worker_pool: WorkerPool) -> None:
    """As on the meta device: nobody ever holds all of it."""
    (whole,) = worker_pool.run(train, 1, args=("meta", {}))
    cut = worker_pool.run(train, 2, args=("meta", {"stages": 2, "copies": False}))
    assert_alike(cut, whole)
    assert sorted(cut[0]["held"] + cut[1]["held"]) == whole["held"]
