# SPDX-License-Identifier: Apache-2.0
"""Loops with something odd in them, run as workers or as the plain script that they must equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from bodies_runtime import FEATURES, TIMEOUT_S, train, vectors
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gangline
from gangline.worker.gradients import layout


@dataclass(frozen=True)
class Corner:
    """A loop with something odd in it, run as workers (`shares`) or as one plain process (None)."""

    name: str
    shares: tuple[float, ...] | None = None
    samples: int = 20
    batch: int = 8
    unit_bytes: int | None = None
    dtype: torch.dtype = torch.float64


def deep(width: int = 6) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(FEATURES, width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, 1),
    )


def run_corner(corner: Corner) -> torch.Tensor:
    """The parameters after every update."""
    previous = layout.build_layout.__kwdefaults__["unit_bytes"]
    if corner.unit_bytes is not None:
        layout.build_layout.__kwdefaults__["unit_bytes"] = corner.unit_bytes
    try:
        return globals()[f"corner_{corner.name}"](corner)
    finally:
        layout.build_layout.__kwdefaults__["unit_bytes"] = previous


def prepared(corner: Corner, model: nn.Module, optimizer: Any, **options: Any) -> Any:
    x, y = vectors(corner.samples).tensors
    data = TensorDataset(x.to(corner.dtype), y.to(corner.dtype))
    loader = DataLoader(data, batch_size=corner.batch)
    if corner.shares is None:
        return model, optimizer, loader
    gangline.init(timeout_s=TIMEOUT_S)
    return gangline.prepare(model, optimizer, loader, shares=corner.shares, **options)


def flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ValueError("a bug in the user's layer")


def corner_plain(corner: Corner) -> torch.Tensor:
    torch.manual_seed(0)
    model = deep().to(corner.dtype)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, loader = prepared(corner, model, optimizer)
    history = []
    for batch in loader:
        train(model, optimizer, batch)
        history.append(flat(model))
    return torch.stack(history)


def corner_autocast(corner: Corner) -> torch.Tensor:
    torch.manual_seed(0)
    model = deep(16)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = prepared(corner, model, optimizer)
    history = []
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        history.append(flat(model))
    return torch.stack(history)


def corner_poisoned_ghost(corner: Corner) -> torch.Tensor:
    """In the last step only worker 0 has samples; the others' losses are not finite."""
    torch.manual_seed(0)
    model = deep().to(corner.dtype)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = prepared(corner, model, optimizer)
    history = []
    for index, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        is_last = index == len(loader) - 1
        if is_last and corner.shares is not None and gangline.rank() > 0:
            loss = loss * (float("nan") if gangline.rank() == 1 else float("inf"))
        loss.backward()
        optimizer.step()
        history.append(flat(model))
    return torch.stack(history)


def corner_closure(corner: Corner) -> torch.Tensor:
    torch.manual_seed(0)
    model = deep().to(corner.dtype)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = prepared(corner, model, optimizer)
    history = []
    for x, y in loader:

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        history.append(flat(model))
    return torch.stack(history)


def corner_step_inside_no_sync(corner: Corner) -> torch.Tensor:
    """`step` is the backstop: what no pass exchanged is exchanged before the update."""
    torch.manual_seed(0)
    model = deep().to(corner.dtype)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = prepared(corner, model, optimizer)
    history = []
    for batch in loader:
        with gangline.no_sync():
            train(model, optimizer, batch)
        history.append(flat(model))
    return torch.stack(history)


def corner_step_after_no_sync(corner: Corner) -> torch.Tensor:
    torch.manual_seed(0)
    model = deep().to(corner.dtype)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = prepared(corner, model, optimizer)
    history = []
    for x, y in loader:
        optimizer.zero_grad()
        with gangline.no_sync():
            F.mse_loss(model(x), y).backward()
        optimizer.step()
        history.append(flat(model))
    return torch.stack(history)


def corner_failed_passes(corner: Corner) -> torch.Tensor:
    """Every step begins with a backward pass that raises on all workers."""
    torch.manual_seed(0)
    model = deep().to(corner.dtype)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = prepared(corner, model, optimizer)
    history = []
    for batch in loader:
        try:
            model[2:](Broken.apply(model[:2](batch[0]))).sum().backward()
        except ValueError:
            optimizer.zero_grad()
        train(model, optimizer, batch)
        history.append(flat(model))
    return torch.stack(history)


class RateLess(torch.optim.Optimizer):
    """An optimizer of somebody's own, without a learning rate."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"step_size": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["step_size"])


def corner_own_optimizer(corner: Corner) -> torch.Tensor:
    torch.manual_seed(0)
    model = deep().to(corner.dtype)
    optimizer: Any = RateLess(model.parameters())
    model, optimizer, loader = prepared(corner, model, optimizer)
    history = []
    for batch in loader:
        train(model, optimizer, batch)
        history.append(flat(model))
    return torch.stack(history)


def corner_overflow(corner: Corner) -> torch.Tensor:
    """One worker's gradient overflows: all skip the step and halve the scale."""
    torch.manual_seed(0)
    model = deep().to(corner.dtype)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    model, optimizer, loader = prepared(corner, model, optimizer, stateful=[scaler])
    history = []
    for index, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        if index == 1 and (corner.shares is None or gangline.rank() == 1):
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        history.append(torch.cat([flat(model), torch.tensor([scaler.get_scale()])]))
    return torch.stack(history)
