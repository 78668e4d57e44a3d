# SPDX-License-Identifier: Apache-2.0
"""The program of a worker of `fit`: `python -m gangline.engines.spark.training.trainee`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gangline.engines.spark.rows.dataset import Rows
from gangline.engines.spark.training.state import write_state
from gangline.engines.spark.training.work import (
    FOLDER_VARIABLE,
    NUM_SENDERS,
    STATE_FILE,
    Work,
    read_rows,
    unpacked,
)
from gangline.spec.errors import UsageError
from gangline.worker import api

if TYPE_CHECKING:
    from torch import Tensor, nn


def main() -> None:
    """Trains, and leaves the state for the driver if this is one of the first workers."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named is None:
        raise UsageError(
            f"{FOLDER_VARIABLE} is not set: this program is started by gangline.spark.fit"
        )
    folder = Path(named)
    work, place = unpacked(folder), read_rows(folder)
    rows = Rows(place.index, Path(place.folder))
    api.init()
    trained = train(work, rows)
    if api.rank() < min(NUM_SENDERS, api.world_size()):
        write_state(trained, folder / STATE_FILE)


def train(work: Work, rows: Rows) -> nn.Module:
    """Runs the user's function, or our own loop; the trained model."""
    model: nn.Module = work.model
    if work.train is None:
        fit_pieces(model, work, rows)
        return model
    chosen = rows if work.features is None else rows.select(work.features, work.label)
    returned = work.train(model, chosen)
    if returned is None:
        return model
    if not isinstance(returned, torch.nn.Module):
        raise UsageError(
            f"the train function returned {type(returned).__name__}: it must return the trained "
            "model, or nothing where it has trained the model that it was given"
        )
    return returned


def fit_pieces(model: nn.Module, work: Work, rows: Rows) -> None:
    """The plain loop over a model, an optimizer and a loss."""
    assert work.loss is not None
    assert work.optimizer is not None
    assert work.features is not None
    device = api.device()
    model.to(device)
    chosen = rows.select(work.features, work.label)
    loader = chosen.loader(work.batch, shuffle=work.shuffle)
    optimizer = work.optimizer(model.parameters())
    model, optimizer, loader = api.prepare(model, optimizer, loader, **(work.options or {}))
    model.train()
    for _ in api.epochs(work.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = work.loss(*matched(model(x.to(device)), y.to(device)))
            loss.backward()
            optimizer.step()
            api.log(loss=loss.detach())


def matched(output: Any, label: Tensor) -> tuple[Any, Tensor]:
    """A column of one number and a label without that dimension are brought to one shape.

    Torch would compare every output with every label.
    """
    is_column = isinstance(output, torch.Tensor) and output.shape[-1:] == (1,)
    if is_column and output.ndim == label.ndim + 1 and label.is_floating_point():
        return output.squeeze(-1), label
    return output, label


if __name__ == "__main__":
    main()
