# SPDX-License-Identifier: Apache-2.0
"""Loops over rows that the workers of a job make together. They run inside worker processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from bodies_runtime import message_of
from torch.utils.data import DataLoader, TensorDataset

import gangline

ROWS = 200


def double(rows: np.ndarray) -> np.ndarray:
    return rows * 2


def as_tensor(rows: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(rows) + 1


def total(rows: np.ndarray, factor: float) -> np.ndarray:
    return rows.sum(axis=0) * factor


def labelled(rows: np.ndarray) -> list[Any]:
    return [{"first": row[0], "all": (row, "text", None)} for row in rows]


def fail_at_78(rows: np.ndarray) -> np.ndarray:
    if 78 in rows[:, 0]:
        raise ArithmeticError("no")
    return rows


def as_object(rows: np.ndarray) -> list[object]:
    return [object()]


def longer(one: list[int], other: list[int]) -> list[int]:
    return one + other


def firsts(rows: np.ndarray) -> list[int]:
    return rows[:, 0].astype(int).tolist()


def values() -> np.ndarray:
    return np.arange(3.0 * ROWS).reshape(ROWS, 3)


def map_everything(scheme: str | None) -> dict[str, Any]:
    """What every worker has after loops of all kinds."""
    gangline.init(timeout_s=30)
    options: dict[str, Any] = {"scheme": scheme, "where": "job", "workers": 2}
    data = values()
    mapped = gangline.map(double, data, details=True, **options)
    return {
        "doubled": mapped.value.tolist(),
        "rows": mapped.rows_of,
        "tensor": gangline.map(as_tensor, data, **options).tolist(),
        "total": gangline.reduce(total, data, 2.0, **options).tolist(),
        "labelled": [one["all"][0].tolist() for one in gangline.map(labelled, data, **options)],
        "list": np.concatenate(gangline.map(double, data, combine="list", **options)).tolist(),
        "own": sorted(gangline.reduce(firsts, data, combine=longer, **options)),
        "empty": gangline.map(double, data[:0], **options).shape,
    }


def refuse(what: str) -> str:
    """The error that each worker gets."""
    gangline.init(timeout_s=30)
    rank = gangline.rank()

    def loop(function: Any, **options: Any) -> Any:
        return gangline.map(function, values(), where="job", scheme="SS", grain=10, **options)

    mistakes = {
        "lambda": lambda: loop(lambda rows: rows),
        "other functions": lambda: loop(double if rank else firsts),
        "a failure": lambda: loop(fail_at_78),
        "an object": lambda: loop(as_object),
        "progress": lambda: loop(double, progress=True),
        "imap": lambda: gangline.imap(double, values(), where="job"),
        "a method between": lambda: gangline.map(double, values(), where="job", scheme="expert"),
    }
    return message_of(mistakes[what])


def collect() -> tuple[int, list[tuple[int, int]]]:
    gangline.init(timeout_s=30)
    made = gangline.map(
        fail_at_78, values(), where="job", scheme="GSS/SS", workers=1, on_error="collect"
    )
    return len(made.value), [(one.start, one.stop) for one in made.failures]


def evaluate_pulled(
    kind: str, has_training: bool
) -> tuple[list[list[int]], list[list[int]], float]:
    """The samples of each batch that this worker pulled, twice over; and their mean by all workers."""
    gangline.init(timeout_s=30)
    numbers = torch.arange(53)
    if has_training:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        gangline.prepare(model, optimizer, DataLoader(TensorDataset(numbers), batch_size=6))
    options: dict[str, Any] = {
        "plain": {"batch_size": 5},
        "shuffled": {"batch_size": 5, "shuffle": True, "drop_last": True},
        "own batches": {"batch_sampler": [[n, n + 1] for n in range(0, 52, 2)] + [[52]]},
        "processes": {"batch_size": 5, "num_workers": 1},
    }[kind]
    loader = gangline.evaluate(DataLoader(TensorDataset(numbers), **options), scheme="GSS")
    batches = [x.tolist() for (x,) in loader]
    again = [x.tolist() for (x,) in loader]
    flat = [n for batch in batches for n in batch]
    mean = gangline.mean(sum(flat) / max(1, len(flat)), weight=len(flat))
    return batches, again, mean
