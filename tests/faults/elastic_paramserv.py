# SPDX-License-Identifier: Apache-2.0
"""Scripts that call `gangline.paramserv(..., where="job")`, on every worker of a job."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import gangline

if TYPE_CHECKING:
    from elastic_bodies import Parts

ROWS, COLUMNS = 61, 4


def regression(parts: Parts, **options: Any) -> Any:
    """A model of numpy arrays and one torch tensor, which counts the rows that it has seen, too."""
    rng = np.random.default_rng(3)
    features = rng.normal(size=(ROWS, COLUMNS))
    features[:, 0] = np.arange(ROWS) / ROWS
    labels = features @ rng.normal(size=(COLUMNS, 1)) + 0.5
    model = {
        "weights": np.zeros((COLUMNS, 1)),
        "shift": torch.zeros(1, dtype=torch.float64),
        "seen": np.zeros(ROWS),
    }
    defaults = {"epochs": 3, "batch_size": 4, "where": "job", "hyperparameters": {"lr": 0.1}}
    return gangline.paramserv(model, features, labels, update, aggregate, **{**defaults, **options})


def update(model: Any, hyperparameters: Any, features: Any, labels: Any) -> Any:
    wrong = features @ model["weights"] + model["shift"].numpy() - labels
    seen = np.zeros(ROWS)
    np.add.at(seen, np.rint(features[:, 0] * ROWS).astype(int), 1.0 / len(features))
    return {
        "weights": features.T @ wrong / len(features),
        "shift": torch.from_numpy(wrong.mean(axis=0)),
        "seen": seen,
    }


def aggregate(model: Any, hyperparameters: Any, gradients: Any) -> Any:
    rate = hyperparameters["lr"]
    return {
        "weights": model["weights"] - rate * gradients["weights"],
        "shift": model["shift"] - rate * gradients["shift"],
        "seen": model["seen"] + gradients["seen"],
    }


def described(trained: Any) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(value) for name, value in trained.model.items()}


def job_plain(parts: Parts) -> dict[str, Any]:
    """As it is, twice in a row: the job is as it was before."""
    options = {"mode": parts.setup.call, "val_features": np.ones((2, COLUMNS))}
    options |= {"val_labels": np.ones((2, 1)), "validate": lambda m, h, x, y: (1.5, 0.5)}
    first = regression(parts, **options)
    second = regression(parts, mode=parts.setup.call, frequency="batches(2)", average="models")
    parts.found_after = {"first": _facts(first), "second": _facts(second)}
    return {**described(first), **{f"2 {n}": v for n, v in described(second).items()}}


def _facts(trained: Any) -> dict[str, Any]:
    names = ("mode", "workers", "updates", "batches", "samples", "samples_of", "staleness", "lost")
    facts = {name: getattr(trained, name) for name in names}
    return facts | {"history": [(one.epoch, one.loss) for one in trained.history]}


class Trap:
    """Does something to this process in its third batch."""

    def __init__(self, parts: Parts) -> None:
        assert parts.setup.trap is not None
        self._worker, self._batch, self._what = parts.setup.trap
        self._own = gangline.rank()
        self._seen = 0

    def __call__(self, *arguments: Any) -> Any:
        self._seen += 1
        if self._own == self._worker and self._seen == self._batch:
            if self._what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self._what == "hang":
                time.sleep(4)
                return None
            raise ArithmeticError("of the third batch")
        time.sleep(0.01)
        return update(*arguments)


def job_trapped(parts: Parts) -> dict[str, Any]:
    patience = {"patience_s": 0.5} if parts.setup.trap[2] == "hang" else {}
    try:
        trained = counted(parts, Trap(parts), mode=parts.setup.call, **patience)
    except gangline.GanglineError as error:
        parts.found_after = {"error": f"{type(error).__name__}: {error}"}
        return {}
    parts.found_after = {"facts": _facts(trained)}
    return described(trained)


def counted(parts: Parts, function: Any, **options: Any) -> Any:
    """As `regression`, by sums: every row counts once per epoch, whatever batch it is in."""
    model, features = {"seen": np.zeros(ROWS)}, np.arange(ROWS)

    def count_rows(model: Any, hyperparameters: Any, rows: Any, labels: Any) -> Any:
        function(*_regression_batch())
        seen = np.zeros(ROWS)
        np.add.at(seen, rows, 1.0)
        return {"seen": seen}

    def add(model: Any, hyperparameters: Any, gradients: Any) -> Any:
        return {"seen": model["seen"] + gradients["seen"]}

    defaults = {"epochs": 3, "batch_size": 4, "where": "job", "reduction": "sum"}
    if parts.setup.folder:
        defaults["checkpoint"] = Path(parts.setup.folder, "kept")
    return gangline.paramserv(model, features, features, count_rows, add, **{**defaults, **options})


def _regression_batch() -> tuple[Any, ...]:
    model = {"weights": np.zeros((COLUMNS, 1)), "shift": torch.zeros(1, dtype=torch.float64)}
    return model, {}, np.zeros((2, COLUMNS)), np.ones((2, 1))


def job_unlike(parts: Parts) -> dict[str, Any]:
    """One process was given another argument."""
    size = 5 if gangline.rank() == 1 else 4
    try:
        regression(parts, batch_size=size)
    except gangline.GanglineError as error:
        parts.found_after = {"error": f"{type(error).__name__}: {error}"}
    return {}
