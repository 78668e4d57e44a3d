# SPDX-License-Identifier: Apache-2.0
"""Each row once per epoch in every mode, and the modes by what comes before what."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import numpy as np
import paramserv_functions as functions
import pytest

import gangline
from gangline.local.child import WorkerLost
from gangline.local.table import Table
from gangline.paramserver.functional.arguments import SCHEMES, settings_of
from gangline.paramserver.functional.computing import Job
from gangline.paramserver.functional.leaves import Form
from gangline.paramserver.functional.ledger import Ledger
from gangline.paramserver.functional.result import Tally
from gangline.paramserver.functional.server import Server

MODES = ("bsp", "asp", "ssp(2)", "backup(1)")
FREQUENCIES = ("batch", "batches(2)", "epoch")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("frequency", FREQUENCIES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_row_is_used_once_per_epoch(mode: str, frequency: str, scheme: str) -> None:
    counts, trained = functions.counted(mode=mode, frequency=frequency, scheme=scheme)
    copies = 4 if scheme == "overlap_reshuffle" else 1
    assert counts.tolist() == [3.0 * copies] * 53
    assert trained.samples == sum(trained.samples_of.values()) == 3 * copies * 53
    assert trained.updates == sum(trained.staleness.values())
    assert len(trained.history) == 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [2, 5, 17])
def test_few_rows_are_enough(mode: str, rows: int) -> None:
    counts, trained = functions.counted(mode=mode, rows=rows, workers=4, batch_size=1)
    assert counts.tolist() == [3.0] * rows
    assert trained.workers == min(rows, 4)
    assert trained.batches == 3 * rows


def test_each_row_counts_once_whoever_is_slow_or_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random runs in which some workers sleep and some are lost, as processes would be."""
    compute = Job.compute

    def troubled(self, worker, portion, model):
        calls[worker] += 1
        time.sleep(rng.choice([0, 0, 0.001]))
        if calls[worker] == dies_at.get(worker):
            raise WorkerLost("on purpose")
        return compute(self, worker, portion, model)

    monkeypatch.setattr(Job, "compute", troubled)
    for seed in range(40):
        rng = random.Random(seed)
        workers, rows, epochs = rng.randint(2, 5), rng.randint(6, 50), rng.randint(1, 3)
        dies_at = {one: rng.randint(1, 5) for one in range(1, workers) if rng.random() < 0.4}
        calls = Counter[int]()
        counts, trained = functions.counted(
            rows=rows,
            workers=workers,
            epochs=epochs,
            mode=rng.choice([*MODES, f"backup({workers - 1})"]),
            batch_size=rng.randint(1, 6),
            frequency=rng.choice(FREQUENCIES),
        )
        assert counts.tolist() == [float(epochs)] * rows, seed
        assert trained.lost.keys() == {one for one in dies_at if calls[one] >= dies_at[one]}


def test_the_same_seed_gives_the_same_model() -> None:
    one, again, other = (
        functions.train(scheme="disjoint_random", seed=seed).model[0] for seed in (5, 5, 6)
    )
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("mode", ["asp", "ssp(1)"])
def test_models_are_averaged_without_rounds(mode: str) -> None:
    """Two workers have read the same model: both go half of the way that they went by themselves."""
    start, features, labels = functions.numbered(2)
    form = Form.of(start)
    job = Job(
        update=functions.count_rows,
        aggregate=functions.add,
        hyperparameters={},
        features=Table(features, name="features"),
        labels=Table(labels, name="labels"),
        model_form=form,
        gradient_form=form,
        pushes_models=True,
    )
    choices = {"scheme": SCHEMES[0], "average": "models", "reduction": "mean", "where": "threads"}
    numbers = {"rows": 2, "workers": 2, "epochs": 1, "batch_size": 1, "seed": 0}
    settings = settings_of(mode=mode, frequency="batch", patience_s=None, **numbers, **choices)
    parts = [np.array([0]), np.array([1])]
    ledger = Ledger(parts, batch_size=1, per_push=1, epochs=1, in_step=False)
    server = Server(settings, job, model=start, ledger=ledger, tally=Tally())
    tasks = [server.take(worker) for worker in range(2)]
    for worker, task in enumerate(tasks):
        assert task is not None
        server.push(worker, task, job.compute(worker, task.portion, task.model))
    assert server.model[0].tolist() == [0.5, 0.5]


class Scene:
    """An update whose first worker stands still until something has happened, and others begin then."""

    def __init__(self, until) -> None:
        self.changed = threading.Condition()
        self.done: list[int] = []
        self.until = until
        self.waited_in_vain = self.is_standing = False

    def update(self, model, hyperparameters, features, labels):
        with self.changed:
            if features[0] != 0:
                self.changed.wait_for(lambda: self.is_standing, timeout=20)
            elif not self.is_standing:
                self.is_standing = True
                self.changed.notify_all()
                self.waited_in_vain = not self.changed.wait_for(
                    lambda: self.until(self), timeout=20
                )
            self.done.append(int(features[0]))
            self.changed.notify_all()
        return functions.count_rows(model, hyperparameters, features, labels)

    def run(self, **options):
        model, features, labels = functions.numbered(20)
        defaults = {"epochs": 2, "workers": 2, "batch_size": 1, "reduction": "sum"}
        trained = gangline.paramserv(
            model, features, labels, self.update, functions.add, **{**defaults, **options}
        )
        assert trained.model[0].tolist() == [2.0] * 20
        return trained


def test_asp_never_waits() -> None:
    """Worker 1 does all its 20 updates of both epochs while worker 0 stands in its first one."""
    scene = Scene(until=lambda scene: len(scene.done) == 20)
    trained = scene.run(mode="asp")
    assert not scene.waited_in_vain
    assert all(row >= 10 for row in scene.done[:20])
    assert max(trained.staleness) >= 19, "worker 0's first update did not know the others"


@pytest.mark.parametrize("staleness", [0, 3])
def test_ssp_lets_nobody_get_further_ahead(staleness: int) -> None:
    """Worker 1 can begin the clocks 0 to s while worker 0 is in clock 0, and no other one."""
    scene = Scene(until=lambda scene: len(scene.done) == staleness + 1)
    ahead = []

    def counted_update(model, hyperparameters, features, labels):
        if features[0] != 0 and 0 not in scene.done:
            ahead.append(len(scene.done))
        return scene.update(model, hyperparameters, features, labels)

    model, features, labels = functions.numbered(20)
    trained = gangline.paramserv(
        model,
        features,
        labels,
        counted_update,
        functions.add,
        epochs=2,
        workers=2,
        batch_size=1,
        reduction="sum",
        mode=f"ssp({staleness})",
    )
    assert not scene.waited_in_vain
    assert max(ahead) == staleness
    assert trained.model[0].tolist() == [2.0] * 20


def test_a_backup_worker_is_not_waited_for() -> None:
    """While worker 0 stands in its first update, the other does everything else of the epoch."""
    scene = Scene(until=lambda scene: len(scene.done) == 19)
    trained = scene.run(mode="backup(1)")
    assert not scene.waited_in_vain
    assert trained.dropped >= 1
    assert set(trained.staleness) == {0}
