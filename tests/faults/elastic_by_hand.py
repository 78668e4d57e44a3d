# SPDX-License-Identifier: Apache-2.0
"""Loops that change parameters or state beside their optimizer; see `elastic_bodies`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from elastic_bodies import describe, mlp
from elastic_windows import Counter

import gangline

if TYPE_CHECKING:
    from elastic_bodies import Parts


def perturbed(parts: Parts) -> dict[str, Any]:
    """Each step is that of the gradient at weights that were moved uphill, and are moved back."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                moves = [0.05 * p.grad / p.grad.norm() for p in model.parameters()]
                for parameter, move in zip(model.parameters(), moves, strict=True):
                    parameter.add_(move)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for parameter, move in zip(model.parameters(), moves, strict=True):
                    parameter.sub_(move)
            optimizer.step()
            optimizer.zero_grad()
            parts.average(1.0)
    return describe([model], [optimizer])


def shrunk(parts: Parts) -> dict[str, Any]:
    """The weights are shrunk by hand after every step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.95)
            parts.average(1.0)
    return describe([model], [optimizer])


class Counting(torch.optim.Optimizer):
    """Counts, and shrinks the weights, whether they have gradients or not."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.2})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                parameter.mul_(1 - 0.1 / state["count"])
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] * parameter.grad)


def own_optimizer(parts: Parts) -> dict[str, Any]:
    """An optimizer of one's own, which does something without gradients, and so do its hooks."""
    model = mlp()
    optimizer = Counting(model.parameters())

    def count(optimizer: Any, args: Any, kwargs: Any) -> None:
        for state in optimizer.state.values():
            state["count"] += 1

    optimizer.register_step_pre_hook(count)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    optimizer.register_step_post_hook(count)
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            parts.average(1.0)
    return describe([model], [optimizer])


def decayed(parts: Parts) -> dict[str, Any]:
    """The momentum is shrunk by hand after every step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            for state in optimizer.state.values():
                state["momentum_buffer"].mul_(0.5)
            parts.average(1.0)
    return describe([model], [optimizer])


class Totals:
    """The losses of all samples, added up over all workers."""

    def __init__(self) -> None:
        self.values = torch.zeros(2)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state["values"]


def summed(parts: Parts) -> dict[str, Any]:
    """Every step's losses are summed over all workers, before the step is made."""
    model, totals = mlp(), Totals()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader(), stateful=(totals,))
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            count = 0 if not parts.is_alone and gangline.is_ghost() else len(x)
            own = torch.tensor([loss.item() * count, count])
            totals.values = totals.values + (own if parts.is_alone else gangline.sum(own))
            optimizer.step()
    return {**describe([model], [optimizer]), "totals": totals.values}


def scaled_windows(parts: Parts) -> dict[str, Any]:
    """A scaler, whose scale is part of every loss, in windows that the loop counts itself."""
    model, counter = mlp(), Counter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    model, optimizer, loader = parts.prepare(
        model, optimizer, parts.loader(), stateful=(counter, scaler)
    )
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            is_end = counter.is_end(3)
            loss = scaler.scale(F.cross_entropy(model(x), y))
            if is_end or parts.is_alone:
                loss.backward()
            else:
                with gangline.no_sync():
                    loss.backward()
            if is_end:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    return describe([model], [optimizer])
