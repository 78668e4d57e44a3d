# SPDX-License-Identifier: Apache-2.0
"""What `gangline.paramserv` refuses, and how it says so."""

from __future__ import annotations

import numpy as np
import paramserv_functions as functions
import pytest
import torch

import gangline
from gangline.paramserver.functional.jobs import shown
from gangline.spec.errors import FunctionError, GradientError, UsageError

MODES = ("bsp", "asp", "ssp(2)", "backup(1)")
LR = {"lr": 0.1}


FEATURES, LABELS = functions.regression(rows=20)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epochs": 0}, "epochs=0: give a whole number of at least 1"),
        ({"epochs": 2.0}, "epochs=2.0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"workers": 0}, "workers=0"),
        ({"workers": True}, "workers=True"),
        ({"seed": -1}, "seed=-1"),
        ({"mode": "ssp(-1)"}, "staleness of 0"),
        ({"mode": "sbp"}, "'sbp' is not known"),
        ({"mode": None}, "mode=None"),
        ({"mode": "backup(4)"}, "at most 3 can be spared"),
        ({"mode": "backup(20)", "workers": 30}, "no more than 20 of 30 workers are busy"),
        ({"frequency": "batches(0)"}, "frequency='batches\\(0\\)'"),
        ({"frequency": "hourly"}, "frequency='hourly'"),
        ({"scheme": "random"}, "scheme='random' is not known; choose one of disjoint_contiguous"),
        ({"average": "all"}, "average='all'"),
        ({"average": "models", "reduction": "sum"}, "a sum of models is no model"),
        ({"where": "spark"}, "where='spark'"),
        ({"patience_s": 3}, "a thread that hangs cannot be ended"),
        ({"patience_s": "3", "where": "processes"}, "patience_s='3': give seconds"),
        ({"patience_s": 0, "where": "processes"}, "patience_s=0: give seconds"),
        ({"num_gradients": 3}, "num_gradients=3"),
        ({"update": 3}, "update is a int; give a function"),
        ({"features": FEATURES[:19]}, "differ in their rows: 19 and 20"),
        ({"features": FEATURES[:0], "labels": LABELS[:0]}, "have no rows"),
        ({"features": [[1.0]]}, "features is a list"),
        ({"labels": np.float64(3.0)}, "labels is a single value"),
        ({"model": []}, "the model is empty"),
        ({"model": np.zeros(3)}, "the model is a ndarray"),
        ({"model": [np.zeros(3, dtype=int)]}, "entry 0 of the model is numpy int64\\[3\\]"),
        ({"model": [1.0]}, "entry 0 of the model is a float"),
        ({"validate": functions.validate}, "validate needs val_features and val_labels"),
        ({"val_labels": LABELS}, "give that function too"),
        ({"checkpoint": "no/such/folder/file"}, "its folder does not exist"),
    ],
)
def test_what_cannot_be_done_is_refused(options: dict, said: str) -> None:
    given = {
        "model": functions.start(),
        "features": FEATURES,
        "labels": LABELS,
        "update": functions.update,
        "aggregate": functions.aggregate,
        "epochs": 1,
        "workers": 4,
        "hyperparameters": LR,
    }
    with pytest.raises(UsageError, match=said):
        gangline.paramserv(**{**given, **options})


@pytest.mark.parametrize(
    ("gradients", "error", "said"),
    [
        ([np.zeros((4, 1))], UsageError, "must be a list of 2 arrays, as the model is, not 1"),
        (None, UsageError, "not a NoneType"),
        (
            [np.zeros((4, 1)), np.zeros(2)],
            UsageError,
            "entry 1 .* must be numpy float64\\[1\\], .* not numpy float64\\[2\\]",
        ),
        ([np.zeros((4, 1), "f4"), np.zeros(1)], UsageError, "not numpy float32\\[4, 1\\]"),
        ([np.zeros((4, 1)), torch.zeros(1)], UsageError, "not torch float32\\[1\\]"),
        ([np.zeros((4, 1)), np.full(1, np.nan)], GradientError, "entry 1 .* not finite"),
    ],
)
@pytest.mark.parametrize("function", ["update", "aggregate"])
def test_other_values_of_a_function_are_refused(gradients, error, said, function) -> None:
    functions_given = {"update": functions.update, "aggregate": functions.aggregate}
    functions_given[function] = lambda *_: gradients
    with pytest.raises(error, match=said) as raised:
        gangline.paramserv(
            functions.start(),
            FEATURES,
            LABELS,
            **functions_given,
            epochs=1,
            workers=2,
            hyperparameters=LR,
        )
    assert f"that {function} returned for " in str(raised.value)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("function", ["update", "aggregate", "validate"])
def test_a_function_that_raises_is_named(mode: str, function: str) -> None:
    def raises(*_):
        raise ArithmeticError("on purpose")

    names = {"update": functions.update, "aggregate": functions.aggregate}
    names["validate"] = functions.validate
    names[function] = raises
    with pytest.raises(
        FunctionError, match=f"^{function} failed for .*: ArithmeticError: on"
    ) as told:
        gangline.paramserv(
            functions.start(),
            FEATURES,
            LABELS,
            **names,
            val_features=FEATURES,
            val_labels=LABELS,
            epochs=1,
            workers=2,
            hyperparameters=LR,
            mode=mode,
        )
    assert isinstance(told.value.__cause__, ArithmeticError)
    if function == "update":
        assert "(epoch 1, batch 1)" in str(told.value)


@pytest.mark.parametrize("found", ["bad", (1.0, 2.0, 3.0), None])
def test_another_value_of_validate_is_refused(found) -> None:
    with pytest.raises(UsageError, match="validate must return a loss"):
        functions.train(validate=lambda *_: found, val_features=FEATURES, val_labels=LABELS)


def test_a_loss_alone_is_enough() -> None:
    trained = functions.train(
        validate=lambda *_: np.float32(2), val_features=FEATURES, val_labels=LABELS
    )
    assert [epoch.loss for epoch in trained.history] == [2.0] * 3
    assert trained.history[0].accuracy is None


def test_arguments_are_compared_between_processes_whatever_they_are() -> None:
    """Neither addresses nor the order of a set may tell two processes apart."""
    assert shown({"b": 1, "a": {"y", "x"}}) == shown({"a": {"x", "y"}, "b": 1})
    assert shown(object()) == shown(object()) == "object"
    assert shown({"w": np.zeros(3)}) == "dict"
    assert shown(np.zeros((3, 2))) == "ndarray[3, 2]"
    assert shown("x" * 200 + "a") != shown("x" * 200 + "b")
    assert shown(shown) == "shown"
