# SPDX-License-Identifier: Apache-2.0
"""Layers with running statistics: as workers do it, and the reference that they must agree with.

The reference is "each share normalised by itself": the gradient is the mean of the shares' gradients
and the running statistics are the mean of the shares' statistics, both weighted by share.
"""

from __future__ import annotations

import copy
import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from bodies_runtime import FEATURES, TIMEOUT_S, vectors
from torch import nn
from torch.utils.data import DataLoader

import gangline


@dataclass(frozen=True)
class Normalised:
    """A job with running statistics."""

    layer: str = "batch"
    parts: tuple[tuple[tuple[int, ...], ...], ...] = (((4, 4),), ((6, 2),))
    """Per step and micro-batch: each worker's samples. The reference is computed from these."""
    shares: tuple[float, ...] = (1.0, 1.0)
    batch: int = 8
    accumulate: int = 1
    reduction: str = "mean"

    @property
    def samples(self) -> int:
        return sum(sum(sum(micro) for micro in step) for step in self.parts)


class InPlace(nn.Module):
    """A running mean of somebody's own, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running", torch.zeros(FEATURES))
        self.register_buffer("constant", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.running.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x - self.running


class Assigned(InPlace):
    """The same, by assigning a new tensor to the buffer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.running = 0.9 * self.running + 0.1 * x.detach().mean(0)
        return x - self.running


class InstanceNorm(nn.InstanceNorm1d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.stack([x, x * x], dim=2)).mean(2)


LAYERS = {
    "batch": lambda: nn.BatchNorm1d(FEATURES),
    "cumulative": lambda: nn.BatchNorm1d(FEATURES, momentum=None),
    "instance": lambda: InstanceNorm(FEATURES, track_running_stats=True, affine=True),
    "in place": InPlace,
    "assigned": Assigned,
}


def build(job: Normalised) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, FEATURES), LAYERS[job.layer](), nn.Tanh(), nn.Linear(FEATURES, 1)
    ).double()


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in model.state_dict().items()}


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor, reduction: str) -> torch.Tensor:
    return F.mse_loss(model(x.double()), y.double(), reduction=reduction)


def run_normalised(job: Normalised, poison_last: bool = False) -> list[dict[str, torch.Tensor]]:
    """The state after every update, as a worker. A poisoned last step is infinite in the ghosts."""
    gangline.init(timeout_s=TIMEOUT_S)
    model = build(job)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    loader: Any = DataLoader(vectors(job.samples), batch_size=job.batch)
    model, optimizer, loader = gangline.prepare(
        model,
        optimizer,
        loader,
        shares=job.shares,
        accumulate=job.accumulate,
        reduction=job.reduction,
    )
    states = []
    for index, (x, y) in enumerate(loader):
        if poison_last and index == len(loader) - 1 and gangline.rank() > 0:
            x = x * float("inf")
        loss_of(model, x, y, job.reduction).backward()
        if gangline.is_update():
            optimizer.step()
            optimizer.zero_grad()
            states.append(state_of(model))
    return states


def reference(job: Normalised) -> list[dict[str, torch.Tensor]]:
    """The state after every update, by the definition."""
    model = build(job)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = vectors(job.samples).tensors
    states, start = [], 0
    for step in job.parts:
        total = sum(sum(micro) for micro in step)
        copies = [copy.deepcopy(model) for _ in step[0]]
        statistics = {key: torch.zeros_like(value) for key, value in model.named_buffers()}
        optimizer.zero_grad()
        for worker, replica in enumerate(copies):
            share = sum(micro[worker] for micro in step)
            for micro in step:
                if micro[worker]:
                    stop = start + micro[worker]
                    part = loss_of(replica, x[start:stop], y[start:stop], job.reduction)
                    weight = 1.0 if job.reduction == "sum" else micro[worker] / total
                    (part * weight).backward()
                    start = stop
            _add_gradients(model, replica)
            for key, value in replica.named_buffers():
                if not value.is_floating_point():  # a counter of batches; a ghost is one, too
                    statistics[key] = torch.maximum(statistics[key], value)
                elif share:
                    statistics[key] += value * (share / total)
        optimizer.step()
        for key, value in model.named_buffers():
            value.copy_(statistics[key])
        states.append(state_of(model))
    return states


def _add_gradients(model: nn.Module, replica: nn.Module) -> None:
    for parameter, other in zip(model.parameters(), replica.parameters(), strict=True):
        if other.grad is not None:
            before = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = before + other.grad


def count_nothing(batch: Any) -> float:
    return 0.0


def statistics_without_weight() -> dict[str, torch.Tensor]:
    """A step in which no sample counts, as a batch of padding does."""
    gangline.init(timeout_s=TIMEOUT_S)
    model = build(Normalised())
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    loader: Any = DataLoader(vectors(8), batch_size=8)
    model, optimizer, loader = gangline.prepare(model, optimizer, loader, weight=count_nothing)
    for x, y in loader:
        loss_of(model, x, y, "mean").backward()
        optimizer.step()
    return state_of(model)


def shares_of_unlike_workers(shares: tuple[float, ...] | None, slow: int) -> list[str]:
    """Trains until the shares have followed the speeds; returns the warnings."""
    gangline.init(timeout_s=TIMEOUT_S)
    model = build(Normalised())
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    loader: Any = DataLoader(vectors(32 * 40), batch_size=32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, optimizer, loader = gangline.prepare(model, optimizer, loader, shares=shares)
        for x, y in loader:
            time.sleep((0.004 if gangline.rank() == slow else 0.0005) * len(x))
            optimizer.zero_grad()
            loss_of(model, x, y, "mean").backward()
            optimizer.step()
    return [str(one.message) for one in caught]


def share_of_one() -> list[int]:
    """What each worker is handed of a global batch that has too few samples for all."""
    gangline.init(timeout_s=TIMEOUT_S)
    model = build(Normalised())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(vectors(9), batch_size=3)
    return [len(x) for x, _ in gangline.prepare(model, optimizer, loader)[2]]


class Counting(nn.Module):
    """Counts in whole numbers: the batches, which are the same everywhere, and maybe the samples."""

    def __init__(self, *, counts_samples: bool) -> None:
        super().__init__()
        self.counts_samples = counts_samples
        self.register_buffer("samples", torch.zeros((), dtype=torch.int64))
        self.register_buffer("batches", torch.zeros(2, dtype=torch.int32))
        self.register_buffer("mask", torch.ones(3, 3, dtype=torch.bool).tril())
        self.norm = nn.BatchNorm1d(FEATURES)
        self.last = nn.Linear(FEATURES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.batches += 1
        self.samples = self.samples + (len(x) if self.counts_samples else 1)
        return self.last(self.norm(x))


def count_whole_numbers(counts_samples: bool, shares: tuple[float, ...]) -> list[str]:
    """Two epochs with counters in the model: what this worker was warned of."""
    gangline.init(timeout_s=TIMEOUT_S)
    model: Any = Counting(counts_samples=counts_samples)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    loader: Any = DataLoader(vectors(48), batch_size=24)
    return train_warned(*gangline.prepare(model, optimizer, loader, shares=shares))


def train_warned(model: Any, optimizer: Any, loader: Any) -> list[str]:
    """Trains for two epochs: what this worker was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
    return [str(one.message) for one in caught]


class Growing(nn.Module):
    """Fills a buffer, and replaces a layer, in its first forward pass."""

    def __init__(self, *, is_seeded: bool) -> None:
        super().__init__()
        self.is_seeded = is_seeded
        self.first, self.last = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 1)
        self.register_buffer("scale", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.scale is None:
            if self.is_seeded:
                torch.manual_seed(1)
            self.scale = torch.rand(FEATURES)
            self.last = nn.Linear(FEATURES, 1)
        return self.last(self.first(x) * self.scale)


def grow_after_prepare(is_seeded: bool) -> list[str]:
    """Two epochs of a model that grows: what this worker was warned of."""
    gangline.init(timeout_s=TIMEOUT_S)
    model: Any = Growing(is_seeded=is_seeded)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(vectors(16), batch_size=8)
    return train_warned(*gangline.prepare(model, optimizer, loader))
