# SPDX-License-Identifier: Apache-2.0
"""Loops over rows by all workers of a job: every row once, and the same result everywhere."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.append(str(Path(__file__).parent))

from bodies_map import ROWS, collect, evaluate_pulled, map_everything, refuse, values

from cases import quick_of

if TYPE_CHECKING:
    from gangline.testing import WorkerPool


@pytest.mark.parametrize(
    ("scheme", "workers"),
    quick_of([("GSS/SS", 3), ("AWF-C", 2), (None, 3), ("STATIC/expert", 1)], quick=[("GSS/SS", 3)]),
)
def test_all_workers_have_all_results(
    scheme: str | None, workers: int, worker_pool: WorkerPool
) -> None:
    data = values()
    for found in worker_pool.run(map_everything, workers, args=(scheme,)):
        assert found["doubled"] == found["list"] == (data * 2).tolist()
        assert sum(found["rows"]) == ROWS
        assert len(found["rows"]) == workers
        assert found["tensor"] == (data + 1).tolist()
        assert found["total"] == pytest.approx((data.sum(axis=0) * 2).tolist())
        assert found["labelled"] == data.tolist()
        assert found["own"] == data[:, 0].astype(int).tolist()
        assert found["empty"] == (0, 3)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("lambda", "is a lambda or a closure; every node must find the function by its name"),
        ("other functions", "bodies_map.double#"),
        ("a failure", "fail_at_78 failed for rows"),
        ("an object", "cannot be sent to the other nodes"),
        ("progress", "progress=True is for threads and processes"),
        ("imap", "imap is for threads and processes"),
        ("a method between", "between the nodes of a job a scheme must be named"),
    ],
)
def test_mistakes_are_told_on_all_workers(what: str, said: str, worker_pool: WorkerPool) -> None:
    for message in worker_pool.run(refuse, 2, args=(what,)):
        assert said in message


def test_failures_of_all_workers_are_collected(worker_pool: WorkerPool) -> None:
    for count, failures in worker_pool.run(collect, 2):
        assert (count, failures) == (ROWS - 1, [(26, 27)])


EVALUATIONS = list(
    product(["plain", "shuffled", "own batches", "processes"], [False, True], [1, 3])
)


@pytest.mark.parametrize(
    ("kind", "has_training", "workers"),
    quick_of(EVALUATIONS, quick=[("plain", True, 3), ("own batches", False, 3)]),
)
def test_an_evaluation_that_is_pulled_has_every_sample_once(
    kind: str, has_training: bool, workers: int, worker_pool: WorkerPool
) -> None:
    found = worker_pool.run(evaluate_pulled, workers, args=(kind, has_training))
    for some in zip(*((one[0], one[1]) for one in found), strict=True):
        batches = [batch for pulled in some for batch in pulled]
        assert sorted(n for batch in batches for n in batch) == list(range(53))
        sizes = sorted(map(len, batches))
        assert sizes == ([1] + [2] * 26 if kind == "own batches" else [3] + [5] * 10)
    for _, _, mean in found:
        assert mean == pytest.approx(26.0)
