# SPDX-License-Identifier: Apache-2.0
"""A run that was killed goes on from the last epoch that it kept: no row is lost, none counts twice."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import paramserv_functions as functions
import pytest
import torch

import gangline
from gangline.spec.errors import FunctionError, LogError, UsageError

ROWS = 53


class Interrupted:
    """A validation that fails after some epochs: the run ends there."""

    def __init__(self, epochs: int) -> None:
        self.left = epochs

    def __call__(self, model, hyperparameters, features, labels):
        self.left -= 1
        if self.left < 0:
            raise ArithmeticError("on purpose")
        return 0.5, float(model[0].sum())


def counted(path: Path, *, validate, **options):
    model, features, labels = functions.numbered(ROWS)
    defaults = {"epochs": 5, "workers": 3, "batch_size": 4, "reduction": "sum"}
    return gangline.paramserv(
        model,
        features,
        labels,
        functions.count_rows,
        functions.add,
        validate=validate,
        val_features=features,
        val_labels=labels,
        checkpoint=path,
        **{**defaults, **options},
    )


@pytest.mark.parametrize("mode", ["bsp", "asp", "ssp(2)", "backup(1)"])
@pytest.mark.parametrize("frequency", ["batch", "epoch"])
def test_no_row_is_lost_or_counted_twice(mode: str, frequency: str, tmp_path: Path) -> None:
    path = tmp_path / "kept"
    options = {"mode": mode, "frequency": frequency}
    for epochs in (2, 1):
        with pytest.raises(FunctionError, match="on purpose"):
            counted(path, validate=Interrupted(epochs), **options)
    trained = counted(path, validate=Interrupted(9), **options)
    assert trained.model[0].tolist() == [5.0] * ROWS
    assert trained.samples == sum(trained.samples_of.values()) == 5 * ROWS
    assert trained.updates == sum(trained.staleness.values())
    assert [epoch.epoch for epoch in trained.history] == [1, 2, 3, 4, 5]
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_bsp_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    features, labels = functions.regression()

    def train(**options):
        return gangline.paramserv(
            functions.start(),
            features,
            labels,
            functions.update,
            functions.aggregate,
            workers=3,
            batch_size=8,
            hyperparameters={"lr": 0.1},
            **options,
        )

    train(epochs=2, checkpoint=tmp_path / "kept")
    later = train(epochs=5, checkpoint=tmp_path / "kept")
    for found, expected in zip(later.model, train(epochs=5).model, strict=True):
        assert np.array_equal(found, expected)
    again = train(epochs=5, checkpoint=tmp_path / "kept")
    assert np.array_equal(again.model[0], later.model[0])
    assert again.updates == later.updates


def test_a_run_that_is_over_asks_no_function_again(tmp_path: Path) -> None:
    first = counted(tmp_path / "kept", validate=Interrupted(9))
    again = counted(tmp_path / "kept", validate=Interrupted(0))
    assert again.history == first.history


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_are_kept_bit_by_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    data = torch.arange(6.0)

    def train(epochs: int):
        return gangline.paramserv(
            [torch.full((2, 3), 0.1, dtype=dtype), torch.zeros((), dtype=dtype)],
            data,
            data,
            lambda m, h, x, y: [m[0] * 0.1, x.mean().to(dtype)],
            lambda m, h, g: [m[0] - g[0], m[1] + g[1]],
            epochs=epochs,
            workers=2,
            checkpoint=tmp_path / "kept",
        )

    first = train(2)
    again = train(2)
    assert all(torch.equal(a, b) for a, b in zip(first.model, again.model, strict=True))
    assert again.model[0].dtype is dtype


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"workers": 2}, "was made with workers=3, and this run has workers=2"),
        ({"batch_size": 5}, "batch_size=4"),
        ({"mode": "asp"}, "mode=bsp"),
        ({"seed": 1}, "seed=0"),
        ({"epochs": 4}, "is of 5 epochs, and epochs=4 is less"),
    ],
)
def test_another_run_is_not_gone_on_with(options: dict, said: str, tmp_path: Path) -> None:
    counted(tmp_path / "kept", validate=Interrupted(9))
    with pytest.raises(UsageError, match=said):
        counted(tmp_path / "kept", validate=Interrupted(9), **options)


def test_another_file_is_not_taken_for_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"something else")
    with pytest.raises(LogError, match="cannot be read"):
        counted(tmp_path / "kept", validate=Interrupted(9))
    assert (tmp_path / "kept").read_bytes() == b"something else"


SCRIPT = """
import os, signal, sys
sys.path.insert(0, {folder!r})
import paramserv_functions as functions, gangline

def validate(model, *_):
    if model[0].sum() >= 3 * {rows}:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0.5, float(model[0].sum())

model, features, labels = functions.numbered({rows})
assert gangline.paramserv and "torch" not in sys.modules
gangline.paramserv(model, features, labels, functions.count_rows, functions.add, epochs=5, workers=3,
                   batch_size=4, reduction="sum", validate=validate, val_features=features,
                   val_labels=labels, checkpoint={kept!r}, mode="asp")
"""


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    folder, kept = str(Path(functions.__file__).parent), str(tmp_path / "kept")
    script = SCRIPT.format(folder=folder, kept=kept, rows=ROWS)
    killed = subprocess.run([sys.executable, "-c", script], check=False, timeout=30)
    assert killed.returncode == -signal.SIGKILL
    trained = counted(tmp_path / "kept", validate=Interrupted(9), mode="asp")
    assert trained.model[0].tolist() == [5.0] * ROWS
    assert len(trained.history) == 5
