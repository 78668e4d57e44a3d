# SPDX-License-Identifier: Apache-2.0
"""Functions for `gangline.paramserv` that other processes can import, quickly."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

import gangline


def regression(rows: int = 103, columns: int = 4):
    """Data without noise, whose weights can be found exactly."""
    rng = np.random.default_rng(3)
    features = rng.normal(size=(rows, columns))
    return features, features @ rng.normal(size=(columns, 1)) + 0.5


def start(columns: int = 4):
    return [np.zeros((columns, 1)), np.zeros((1,))]


def update(model, hyperparameters, features, labels):
    """The mean gradients of squares."""
    wrong = features @ model[0] + model[1] - labels
    return [features.T @ wrong / len(features), wrong.mean(axis=0)]


def aggregate(model, hyperparameters, gradients):
    return [one - hyperparameters["lr"] * by for one, by in zip(model, gradients, strict=True)]


def validate(model, hyperparameters, features, labels):
    return float(((features @ model[0] + model[1] - labels) ** 2).mean()), 0.25


def train(**options):
    """Three epochs of the regression."""
    features, labels = regression()
    defaults = {"epochs": 3, "workers": 4, "batch_size": 8, "hyperparameters": {"lr": 0.1}}
    return gangline.paramserv(
        start(),
        features,
        labels,
        update,
        aggregate,
        **{**defaults, **options},
    )


# --- rows that count themselves ----------------------------------------------------------------------


def numbered(rows: int):
    """Features that are the rows' own numbers, labels, and a model that counts them."""
    return [np.zeros(rows)], np.arange(rows), np.zeros(rows)


def count_rows(model, hyperparameters, features, labels):
    seen = np.zeros_like(model[0])
    np.add.at(seen, features, 1.0)
    return [seen]


def add(model, hyperparameters, gradients):
    model[0] += gradients[0]  # in place, as many would write it
    return model


def counted(**options):
    """How often each row was used, and the result."""
    model, features, labels = numbered(options.pop("rows", 53))
    defaults = {"epochs": 3, "workers": 4, "batch_size": 5, "reduction": "sum"}
    trained = gangline.paramserv(
        model, features, labels, count_rows, add, **{**defaults, **options}
    )
    assert not model[0].any(), "the user's own model stays as it is"
    return trained.model[0], trained


def count_or_die(model, hyperparameters, features, labels):
    """Counts, but the first who sees row 0 does as told: is killed, stops, or raises."""
    mark = Path(hyperparameters["mark"])
    if 0 in features and not mark.exists():
        mark.touch()
        match hyperparameters["fault"]:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "raise":
                raise ArithmeticError("of row 0")
    return count_rows(model, hyperparameters, features, labels)


def always_die(model, hyperparameters, features, labels):
    os._exit(7)


def sleep_long(model, hyperparameters, features, labels):
    (Path(hyperparameters["pids"]) / str(os.getpid())).touch()
    time.sleep(60)
