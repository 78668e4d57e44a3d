# SPDX-License-Identifier: Apache-2.0
"""`gangline.paramserv` against plain numpy."""

from __future__ import annotations

import time

import numpy as np
import paramserv_functions as functions
import pytest

import gangline

MODES = ("bsp", "asp", "ssp(2)", "backup(1)")
FREQUENCIES = ("batch", "batches(2)", "epoch")
LR = {"lr": 0.1}


def batches_of(worker: int, size: int = 8) -> list[np.ndarray]:
    part = np.array_split(np.arange(103), 4)[worker]
    return [part[start : start + size] for start in range(0, len(part), size)]


def one_process(epochs: int = 3) -> list[np.ndarray]:
    """The same global batches, without gangline: the mean over all rows of a round."""
    features, labels = functions.regression()
    model = functions.start()
    for _ in range(epochs):
        for step in range(4):
            rows = np.concatenate([batches_of(worker)[step] for worker in range(4)])
            gradients = functions.update(model, LR, features[rows], labels[rows])
            model = functions.aggregate(model, LR, gradients)
    return model


@pytest.mark.parametrize("mode", ["bsp", "backup(0)"])
def test_bsp_equals_one_process(mode: str) -> None:
    trained = functions.train(mode=mode)
    for found, expected in zip(trained.model, one_process(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_bsp_equals_one_process_where_workers_have_unlike_numbers_of_batches() -> None:
    """Rows 0 and 2 are the first round of each epoch, row 1 is the second."""
    features, labels = functions.regression(rows=3)
    arguments = (features, labels, functions.update, functions.aggregate)
    trained = gangline.paramserv(
        functions.start(), *arguments, epochs=60, workers=2, batch_size=1, hyperparameters=LR
    )
    model = functions.start()
    for rows in [[0, 2], [1]] * 60:
        gradients = functions.update(model, LR, features[rows], labels[rows])
        model = functions.aggregate(model, LR, gradients)
    np.testing.assert_allclose(trained.model[0], model[0], rtol=0, atol=1e-12)


def test_who_comes_first_changes_no_bit_in_bsp() -> None:
    features, labels = functions.regression()
    bounds = [part[0] for part in np.array_split(np.arange(103), 4)]

    def train_in(order: list[int]) -> np.ndarray:
        def update(model, hyperparameters, x, y):
            worker = int(
                np.searchsorted(bounds, np.flatnonzero(features[:, 0] == x[0, 0])[0], "right")
            )
            time.sleep(0.004 * order[worker - 1])
            return functions.update(model, hyperparameters, x, y)

        options = {"epochs": 2, "workers": 4, "batch_size": 8, "hyperparameters": LR}
        arguments = (functions.start(), features, labels, update, functions.aggregate)
        return gangline.paramserv(*arguments, **options).model[0]

    assert np.array_equal(train_in([0, 1, 2, 3]), train_in([3, 1, 0, 2]))


def test_a_step_is_made_once_for_each_batch() -> None:
    steps = []

    def aggregate(model, hyperparameters, gradients):
        steps.append(1)
        return functions.aggregate(model, hyperparameters, gradients)

    features, labels = functions.regression(rows=30)
    arguments = (functions.start(), features, labels, functions.update, aggregate)
    options = {"epochs": 2, "workers": 1, "batch_size": 10, "hyperparameters": LR}
    for options["frequency"] in FREQUENCIES:
        steps.clear()
        gangline.paramserv(*arguments, **options)
        assert len(steps) == 6


def test_models_are_averaged_by_their_samples() -> None:
    features, labels = functions.regression()
    model = functions.start()
    parts = np.array_split(np.arange(103), 4)
    for _ in range(3):
        ends = []
        for worker in range(4):
            own = model
            for rows in batches_of(worker):
                own = functions.aggregate(
                    own, LR, functions.update(own, LR, features[rows], labels[rows])
                )
            ends.append(own)
        model = [
            sum(end[i] * len(part) for end, part in zip(ends, parts, strict=True)) / 103
            for i in range(2)
        ]
    trained = functions.train(average="models", frequency="epoch")
    for found, expected in zip(trained.model, model, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", ["bsp", "asp", "ssp(0)", "ssp(3)"])
@pytest.mark.parametrize("frequency", FREQUENCIES)
@pytest.mark.parametrize("average", ["gradients", "models"])
def test_one_worker_trains_as_a_plain_loop(mode: str, frequency: str, average: str) -> None:
    features, labels = functions.regression()
    model = functions.start()
    for _ in range(3):
        for first in range(0, 103, 8):
            rows = slice(first, min(first + 8, 103))
            gradients = functions.update(model, LR, features[rows], labels[rows])
            model = functions.aggregate(model, LR, gradients)
    trained = functions.train(mode=mode, frequency=frequency, average=average, workers=1)
    for found, expected in zip(trained.model, model, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_the_summing_form_is_a_choice() -> None:
    """With 4 workers, the sum of their means is 4 times the mean where batches are equal."""
    rows = {"workers": 4, "epochs": 1, "batch_size": 64}
    features, labels = functions.regression(rows=100)
    arguments = (functions.start(), features, labels, functions.update, functions.aggregate)
    mean = gangline.paramserv(*arguments, **rows, hyperparameters={"lr": 0.1})
    summed = gangline.paramserv(*arguments, **rows, hyperparameters={"lr": 0.025}, reduction="sum")
    np.testing.assert_allclose(mean.model[0], summed.model[0], atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("average", ["gradients", "models"])
def test_every_mode_learns(mode: str, average: str) -> None:
    features, labels = functions.regression()
    trained = functions.train(
        mode=mode,
        average=average,
        epochs=30,
        validate=functions.validate,
        val_features=features,
        val_labels=labels,
    )
    losses = [epoch.loss for epoch in trained.history]
    assert [epoch.epoch for epoch in trained.history] == list(range(1, 31))
    assert losses[-1] < losses[0] / 50
    assert trained.history[-1].accuracy == 0.25
    assert trained.history[-1].samples == trained.samples == 30 * 103
    assert "backup" not in mode or set(trained.staleness) == {0}
