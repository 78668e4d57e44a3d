# SPDX-License-Identifier: Apache-2.0
"""`mode="hogwild"`: threads that change one model in place, without waiting for each other."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from paramserv_functions import aggregate, regression, start, update

import gangline
from gangline.spec.errors import GradientError, UsageError

WAIT_S = 20.0


def hogwild(model, features, labels, update, aggregate, **options):
    defaults = {"epochs": 3, "workers": 4, "batch_size": 5, "mode": "hogwild"}
    return gangline.paramserv(model, features, labels, update, aggregate, **{**defaults, **options})


def in_place(model, hyperparameters, gradients):
    for one, by in zip(model, gradients, strict=True):
        one -= 0.1 * by


@pytest.mark.parametrize("function", [in_place, aggregate], ids=["in place", "returned"])
def test_one_thread_is_a_plain_loop(function) -> None:
    features, labels = regression()
    options = {"workers": 1, "hyperparameters": {"lr": 0.1}}
    trained = hogwild(start(), features, labels, update, function, **options)
    expected = start()
    for _ in range(3):
        for first in range(0, len(features), 5):
            rows = slice(first, first + 5)
            gradients = update(expected, {}, features[rows], labels[rows])
            expected = aggregate(expected, {"lr": 0.1}, gradients)
    for found, wanted in zip(trained.model, expected, strict=True):
        assert np.array_equal(found, wanted)
    assert trained.mode == "hogwild"
    assert trained.updates == trained.batches == 3 * 21


def write_rows(model, hyperparameters, gradients):
    """The rows alone, which nobody else writes: others' are left as they are."""
    return [{row: model[0][row] + 1.0 for row in gradients}]


def write_rows_of_tensor(model, hyperparameters, gradients):
    model[0].index_add_(0, gradients.indices()[0], gradients.values())


def rows_of_tensor(model, hyperparameters, features, labels):
    index = torch.as_tensor(features)[None]
    ones = torch.ones(len(features))
    return torch.sparse_coo_tensor(index, ones, model[0].shape, check_invariants=True).coalesce()


@pytest.mark.parametrize(
    ("make", "update", "aggregate"),
    [
        (np.zeros, lambda m, h, x, y: x.tolist(), write_rows),
        (torch.zeros, rows_of_tensor, write_rows_of_tensor),
    ],
    ids=["rows returned", "torch sparse"],
)
def test_each_row_counts_once_per_epoch(make, update, aggregate) -> None:
    """Each batch writes entries of its own, so that nothing overlaps and nothing may be lost."""
    rows = np.arange(203)
    trained = hogwild([make(203)], rows, rows, update, aggregate, batch_size=3)
    assert np.asarray(trained.model[0]).tolist() == [3.0] * 203
    assert trained.samples == 3 * 203
    assert sum(trained.samples_of.values()) == 3 * 203
    assert [one.samples for one in trained.history] == [203, 406, 609]


def test_all_threads_are_in_aggregate_at_once_and_share_the_model() -> None:
    inside = threading.Barrier(3)

    def together(model, hyperparameters, gradients):
        model[0][gradients] = 1.0
        inside.wait(WAIT_S)  # a lock would keep the others out
        assert model[0].sum() == 3.0, "what the others have written is here"
        inside.wait(WAIT_S)

    rows = np.arange(3)
    update = lambda model, h, x, y: int(x[0])  # noqa: E731
    trained = hogwild(
        [np.zeros(3)], rows, rows, update, together, workers=3, batch_size=1, epochs=1
    )
    assert trained.model[0].tolist() == [1.0, 1.0, 1.0]


def test_a_backward_pass_does_not_mind_what_others_write_meanwhile() -> None:
    reading, written = threading.Event(), threading.Event()

    def update(model, hyperparameters, features, labels):
        if features[0] == 1:
            assert reading.wait(WAIT_S)
            return torch.ones(2, 2)
        weights = model[0].requires_grad_()
        loss = (weights @ weights).sum()
        reading.set()
        assert written.wait(WAIT_S)
        loss.backward()  # torch keeps the weights for it, and they are others' by now
        return weights.grad

    def aggregate(model, hyperparameters, gradients):
        with torch.no_grad():
            model[0] += gradients
        written.set()

    rows = np.arange(2)
    trained = hogwild(
        [torch.ones(2, 2)], rows, rows, update, aggregate, workers=2, batch_size=1, epochs=1
    )
    assert torch.isfinite(trained.model[0]).all()


def test_it_goes_on_from_an_epoch(tmp_path) -> None:
    features, labels = regression()
    options = {"workers": 1, "checkpoint": tmp_path / "kept"}
    hogwild(start(), features, labels, update, in_place, epochs=2, **options)
    again = hogwild(start(), features, labels, update, in_place, **options)
    whole = hogwild(start(), features, labels, update, in_place, workers=1)
    assert all(np.array_equal(*pair) for pair in zip(again.model, whole.model, strict=True))
    with pytest.raises(UsageError, match="was made with mode=hogwild, and this run has mode=asp"):
        hogwild(start(), features, labels, update, aggregate, mode="asp", **options)


def test_a_model_that_is_no_number_ends_the_run() -> None:
    rows = np.arange(8)

    def spoil(model, hyperparameters, gradients):
        model[0][0] = np.nan

    with pytest.raises(GradientError, match="the model after epoch 1 has values that are not fin"):
        hogwild([np.zeros(2)], rows, rows, lambda *_: None, spoil)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": "processes"}, "use where='threads', or mode='asp'"),
        ({"frequency": "epoch"}, "frequency='epoch' is for a server"),
        ({"average": "models"}, "average='models' is for a server"),
        ({"reduction": "sum"}, "reduction='sum' is for a server"),
    ],
)
def test_what_needs_a_server_is_refused(options, message) -> None:
    features, labels = regression()
    with pytest.raises(UsageError, match=message):
        hogwild(start(), features, labels, update, in_place, **options)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([{9: 1.0}], r"has row 9, which cannot be written into \(3,\)"),
        ([np.zeros(4)], r"must be numpy float64\[3\], as the model's is"),
        ([], "must be a list of 1 arrays"),
    ],
)
def test_what_cannot_be_written_is_named(found, message) -> None:
    rows = np.arange(3)
    with pytest.raises(UsageError, match=message):
        hogwild([np.zeros(3)], rows, rows, lambda *_: None, lambda *_: found, workers=1)
