# SPDX-License-Identifier: Apache-2.0
"""Workers with any shares compute what one process computes, step by step."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from loops import LOOPS, Problem, Setting, run_loop

from cases import quick_of
from gangline.eventlog import read_run
from gangline.spec.event import ViewAdopted
from tree_members import ring, server, structures

if TYPE_CHECKING:
    from gangline.spec.exchange.structure import Structure
    from gangline.testing import WorkerPool

TOLERANCE = 1e-9
"""All loops train in double precision; their sums differ in the last bits only."""

NO_WINDOWS = {"gan", "gan_one_ahead", "own_window"}
"""Loops that do not use our accumulation windows."""
WINDOWED = sorted(set(LOOPS) - NO_WINDOWS)

TREES = (
    ring(ring(0, 1), ring(3, 2)),
    server(2, 0, 1, leader=1),
    server(ring(3, 1, leader=1), server(0, 2), leader=0),
)

EXCHANGES = [("mlp", "wire"), ("mlp", "wire-tcp"), ("gan", "wire"), ("mlp", "gloo")]


def check(
    pool: WorkerPool,
    name: str,
    problem: Problem,
    setting: Setting,
    *,
    structure: Structure | None = None,
    transport: str | None = None,
) -> None:
    expected = run_loop(name, problem)
    histories = pool.run(
        run_loop,
        len(setting.shares),
        args=(name, problem, setting),
        structure=structure,
        transport=transport,
    )
    for history in histories:
        assert history.shape == expected.shape
        torch.testing.assert_close(history, expected, rtol=0, atol=TOLERANCE)
        assert torch.equal(history, histories[0]), "members must be bit-equal"


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize(
    "shares",
    # Two workers accumulate below, in nearly every kind of loop.
    [(1.0,), pytest.param((5.0, 3.0), marks=pytest.mark.slow), (4.0, 1.0, 3.0)],
    ids=str,
)
def test_every_kind_of_loop_is_exact_when_shares_are_unequal(
    name: str, shares: tuple[float, ...], worker_pool: WorkerPool
) -> None:
    problem = Problem(num_workers=2 if name == "loader_workers" else 0)
    check(worker_pool, name, problem, Setting(shares))


@pytest.mark.parametrize(
    "name", quick_of(WINDOWED, quick=[name for name in WINDOWED if name != "compiled"])
)
def test_every_kind_of_loop_is_exact_when_it_accumulates(
    name: str, worker_pool: WorkerPool
) -> None:
    problem = Problem(samples=21)  # the last global batch has 5 samples, for 3 parts
    check(worker_pool, name, problem, Setting((5.0, 3.0), accumulate=3))


@pytest.mark.parametrize(
    ("tree", "name", "transport"),
    quick_of(
        [(tree, *one) for tree, one in product(TREES, EXCHANGES)],
        quick=[
            (TREES[0], "mlp", "wire"),
            (TREES[1], "mlp", "wire-tcp"),
            (TREES[2], "mlp", "wire-tcp"),
        ],
    ),
    ids=str,
)
def test_training_is_exact_when_the_workers_exchange_by_a_tree(
    name: str, tree: Structure, transport: str, worker_pool: WorkerPool
) -> None:
    shares = (4.0, 1.0, 3.0, 2.0)[: len(tree.workers)]
    check(worker_pool, name, Problem(), Setting(shares), structure=tree, transport=transport)
    adopted = [e for e in read_run(worker_pool.run_dir, notes=[]) if isinstance(e, ViewAdopted)]
    assert {event.structure for event in adopted} == {str(tree)}


def draw_and_check(pool: WorkerPool, data: st.DataObject) -> None:
    """Any loop with any shares, in any tree; the last global batch may be a small one."""
    workers = data.draw(st.integers(1, 4), label="workers")
    batch = data.draw(st.integers(workers, 12), label="batch")
    problem = Problem(
        samples=data.draw(st.integers(batch, 40), label="samples"),
        batch=batch,
        epochs=1,
        drop_last=data.draw(st.booleans(), label="drop_last"),
        seed=data.draw(st.integers(0, 1000), label="seed"),
    )
    setting = Setting(
        shares=tuple(data.draw(st.lists(st.integers(1, 20), min_size=workers, max_size=workers))),
        accumulate=data.draw(st.integers(1, 3), label="accumulate"),
    )
    name = data.draw(st.sampled_from(["mlp", "clipping_and_schedule", "two_losses"]))
    trees = st.none() | structures(min_workers=workers, max_workers=workers)
    check(pool, name, problem, setting, structure=data.draw(trees, label="structure"))


DRAWN = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture],
}


@given(data=st.data())
@settings(max_examples=5, **DRAWN)
def test_training_is_exact_for_any_shares_trees_and_ragged_ends(
    worker_pool: WorkerPool, data: st.DataObject
) -> None:
    draw_and_check(worker_pool, data)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=50, **DRAWN)
def test_training_is_exact_for_many_more_shares_trees_and_ragged_ends(
    worker_pool: WorkerPool, data: st.DataObject
) -> None:
    draw_and_check(worker_pool, data)
