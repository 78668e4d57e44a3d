# SPDX-License-Identifier: Apache-2.0
"""A small training that keeps checkpoints, for the tests: as a job of one, or as a worker of a job."""

from __future__ import annotations

import itertools
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

import gangline
from gangline.worker import api
from gangline.worker.prepare.handshake import Introduction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FEATURES = 5
INTRODUCTION = Introduction(
    gangline_version="1",
    torch_version="2",
    data_set_length=8,
    global_batch=4,
    accumulate=1,
    drop_last=False,
    order="shuffled",
    samples_per_epoch=8,
    reduction="mean",
    has_weight=False,
    parameters=("weight",),
    buffers=(),
    optimizers=("SGD",),
    shares=(1.0, 0.5),
    stateful=(),
)


class Problem(Dataset[Any]):
    """Samples that also say which one they are."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(count, FEATURES, generator=generator, dtype=torch.float64)
        self.y = torch.randn(count, 1, generator=generator, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, self.x[index], self.y[index]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the training."""

    folder: Path | None
    resume: bool | None = None
    sync_batchnorm: bool = False
    stop_after: int | None = None
    """Leave the loop, as if the process had ended, before the batch after so many."""
    every: int = 2
    keep: int = 3
    epochs: int = 3
    samples: int = 23
    batch: int = 6
    order: str = "shuffled"
    dropout: float = 0.0
    plain_range: bool = False
    num_workers: int = 0
    width: int = 4
    accumulate: int = 1
    carries: bool = False
    """Every sample's score is carried from epoch to epoch."""
    zeroes: bool = True
    """Whether the gradients are zeroed at every batch, or carried over from one to the next."""


@dataclass
class Outcome:
    """What a run did."""

    state: dict[str, torch.Tensor]
    used: list[tuple[int, list[int]]]
    """(epoch, indices of the samples) of each batch of this worker, ghosts included."""
    rate: float
    average: torch.Tensor
    """A buffer that the forward pass moves."""


class Net(nn.Module):
    """Has parameters, dropout and a buffer."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, run.width)
        self.second = nn.Linear(run.width, 1)
        self.dropout = nn.Dropout(run.dropout)
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        if run.carries:
            self.kept = gangline.SampleState(run.samples, 1)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.count += 1
        return self.second(self.dropout(torch.tanh(self.first(x))))


class Uneven:
    """A batch sampler whose batches have four sizes, drawn anew every epoch."""

    def __iter__(self) -> Iterator[list[int]]:
        return (part.tolist() for part in torch.randperm(23).split([6, 8, 2, 7]))

    def __len__(self) -> int:
        return 4


def loader_of(run: Run) -> DataLoader[Any]:
    data = Problem(run.samples)
    generator = torch.Generator().manual_seed(4) if "generator" in run.order else None
    if run.order.startswith("drawn"):
        sampler = WeightedRandomSampler(
            [1.0] * run.samples, run.samples, replacement=False, generator=generator
        )
        return DataLoader(data, batch_size=run.batch, sampler=sampler)
    if run.order == "batched":
        return DataLoader(data, batch_sampler=Uneven())
    return DataLoader(
        data,
        batch_size=run.batch,
        shuffle=run.order.startswith("shuffled"),
        generator=generator,
        num_workers=run.num_workers,
    )


def train(run: Run, on_batch: Callable[[int], None] = lambda count: None) -> Outcome:
    """Trains, from the start or from where a checkpoint was taken."""
    torch.manual_seed(11 if not run.resume else 999)  # nothing may depend on it after a resume
    model = Net(run)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)  # its state holds an infinity
    gangline.init()
    _, optimizer, loader = gangline.prepare(
        model,
        optimizer,
        loader_of(run),
        stateful=[scheduler, plateau],
        accumulate=run.accumulate,
        checkpoint=run.folder,
        every=run.every,
        keep=run.keep,
        resume=run.resume,
        sync_batchnorm=run.sync_batchnorm,
    )
    optimizer.zero_grad()  # as scripts do that are about to begin
    used: list[tuple[int, list[int]]] = []
    batches = itertools.count(1)
    epochs = range(run.epochs) if run.plain_range else gangline.epochs(run.epochs)
    for epoch in epochs:
        for index, x, y in loader:
            wait_until_written()
            count = next(batches)
            on_batch(count)
            if run.stop_after is not None and count > run.stop_after:
                return _outcome(model, used, optimizer)
            used.append((epoch, index.tolist()))
            if run.zeroes:
                optimizer.zero_grad()
            scores = model(x)
            if run.carries:
                scores = scores + model.kept[index]
                model.kept[index] = scores / 2
            nn.functional.mse_loss(scores, y).backward()
            optimizer.step()
        scheduler.step()
    return _outcome(model, used, optimizer)


def train_until_killed(run: Run, victim: int, at: int) -> Outcome:
    """Trains; one worker is killed before it does the batch with this number."""
    gangline.init()

    def kill(count: int) -> None:
        if count == at and gangline.rank() == victim and gangline.world_size() > 1:
            os.kill(os.getpid(), signal.SIGKILL)

    return train(run, kill)


def wait_until_written() -> None:
    """Waits for the checkpoint of the step before, that a test knows which ones there are."""
    training = api._job.training
    assert training is not None
    training.keeping.close()


def _outcome(
    model: Net, used: list[tuple[int, list[int]]], optimizer: torch.optim.Optimizer
) -> Outcome:
    state = {name: value.clone() for name, value in model.state_dict().items()}
    rate = float(optimizer.param_groups[0]["lr"])
    outcome = Outcome(state, used, rate, model.count.clone())
    api.shutdown()  # writes what was taken
    return outcome


def checkpoints(folder: Path) -> list[str]:
    """The names of the checkpoints in a folder, oldest first."""
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("step-"))
