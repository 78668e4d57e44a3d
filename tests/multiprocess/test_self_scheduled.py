# SPDX-License-Identifier: Apache-2.0
"""Workers that pull the parts of each global batch compute what one process computes."""

from __future__ import annotations

import time
from itertools import product
from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from loops import LOOPS, Job, Problem, Setting, mlp
from test_exactness import check

import gangline
from cases import quick_of
from gangline.eventlog import read_run
from gangline.observe.ledger import read_ledger
from gangline.spec.event import StepDone
from gangline.testing import WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.testing import WorkerPool

BY_TURNS = {"gan", "gan_one_ahead", "own_window", "window_first", "looks_and_skips"}
"""Loops that count turns, or leave some out."""
WEIGHTED = {"token_weights", "one_ahead_with_weights"}
EXACT = sorted({*LOOPS} - BY_TURNS - WEIGHTED)
QUICK = ["clipping_and_schedule", "two_losses", "loader_workers"]


@pytest.mark.parametrize("name", quick_of(EXACT, quick=QUICK))
def test_a_loop_is_exact_when_parts_are_pulled(name: str, worker_pool: WorkerPool) -> None:
    problem = Problem(num_workers=2 if name == "loader_workers" else 0)
    setting = Setting((1.0, 1.0), allocation="self-scheduled(SS, grain=1)", jitter_s=0.004)
    check(worker_pool, name, problem, setting)


ALLOCATIONS = [
    "self-scheduled",
    "self-scheduled(GSS)",
    "balanced+stolen",
    "balanced+stolen(own=0.5)",
]
SOME = ["mlp", "never_zeroed", "unused_and_unfrozen", "one_ahead"]


@pytest.mark.parametrize(
    ("name", "allocation"),
    quick_of([*product(SOME, ALLOCATIONS)], quick=[("never_zeroed", "balanced+stolen(own=0.5)")]),
)
def test_any_way_of_pulling_is_exact(name: str, allocation: str, worker_pool: WorkerPool) -> None:
    problem = Problem(samples=53, batch=17)
    check(worker_pool, name, problem, Setting((1.0,) * 3, allocation=allocation, jitter_s=0.002))


@pytest.mark.slow
@pytest.mark.timeout(300)
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from(["mlp", "convnet", "two_losses", "loader_workers", "never_zeroed"]),
    problem=st.builds(
        Problem,
        samples=st.integers(20, 60),
        batch=st.integers(4, 20),
        drop_last=st.booleans(),
        num_workers=st.sampled_from([0, 0, 2]),
        seed=st.integers(0, 5),
    ),
    allocation=st.sampled_from([*ALLOCATIONS, "self-scheduled(SS, grain=1)"]),
    jitter_s=st.sampled_from([0.0, 0.001, 0.005]),
    workers=st.integers(1, 3),
)
def test_parts_are_exact_however_workers_overtake_each_other(
    name: str,
    problem: Problem,
    allocation: str,
    jitter_s: float,
    workers: int,
    worker_pool: WorkerPool,
) -> None:
    setting = Setting((1.0,) * workers, allocation=allocation, jitter_s=jitter_s)
    check(worker_pool, name, problem, setting)


def prepared(**options: object) -> tuple[torch.nn.Module, torch.optim.Optimizer, object]:
    gangline.init()
    job = Job(Problem(samples=240), None)
    model = mlp().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"global_batch": 48, "allocation": "self-scheduled(SS, grain=2)", **options}
    return gangline.prepare(model, optimizer, job.loader(), **options)


def train_with_one_late() -> tuple[int, int]:
    """One worker takes long for every sample: how many turns and updates were made here."""
    model, optimizer, loader = prepared()
    turns = updates = 0
    for x, y in loader:
        if gangline.rank() == 1:
            time.sleep(0.01 * len(x))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        turns += 1
        updates += gangline.is_update()
    return turns, updates


def test_a_slow_worker_computes_less_and_the_log_says_who_computed_what(
    worker_pool: WorkerPool,
) -> None:
    (quick, updates), (late, others) = worker_pool.run(train_with_one_late, 2)
    assert updates == others == 5
    assert late < quick
    events = list(read_run(worker_pool.run_dir, notes=[]))
    read_ledger(events).check(length=240, epochs=1)
    done = [event for event in events if isinstance(event, StepDone)]
    assert all(event.samples == sum(b - a for a, b in event.parts) for event in done)
    assert sum(event.samples for event in done if event.worker == 1) < 120


def mean_in_every_turn() -> None:
    model, optimizer, loader = prepared()
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        gangline.mean(loss)


def schedule_in_every_turn() -> None:
    model, optimizer, loader = prepared()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()


def own_windows() -> None:
    model, optimizer, loader = prepared()
    for number, (x, y) in enumerate(loader):
        (F.cross_entropy(model(x), y) / 3).backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


def unsynchronised() -> None:
    _, _, _ = prepared()
    gangline.no_sync()


def weighted() -> None:
    prepared(weight=len)


def accumulated() -> None:
    prepared(accumulate=2)


def relaxed() -> None:
    prepared(sync="flexible")


REFUSED = [
    (mean_in_every_turn, r"mean.* is a call of all workers, and others may not make it"),
    (schedule_in_every_turn, "a learning rate was changed in a turn that does not complete"),
    (own_windows, r"call optimizer.step\(\) in every turn, or where gangline.is_update\(\)"),
    (unsynchronised, r"no_sync\(\) cannot go with parts that are pulled"),
    (weighted, "weight= needs the weight of the whole batch"),
    (accumulated, "accumulate= makes parts of its own"),
    (relaxed, "no parts of a global batch can be pulled"),
]


@pytest.mark.parametrize(("loop", "said"), quick_of(REFUSED, quick=REFUSED[:2]))
def test_what_cannot_go_with_pulled_parts_is_refused(
    loop: Callable[[], None], said: str, worker_pool: WorkerPool
) -> None:
    with pytest.raises(WorkerError, match=said):
        worker_pool.run(loop, 2)
