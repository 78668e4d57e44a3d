# SPDX-License-Identifier: Apache-2.0
"""Training that stops early: each epoch by a limit, and the whole when nothing gets better."""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if os.environ.get("PLAIN"):
    import no_gangline as gangline
else:
    import gangline

LIMIT = 3.0


class EarlyStopping:
    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.best, self.num_bad = float("inf"), 0
        self.best_state: dict[str, Any] = {}

    def is_over(self, loss: float, model: nn.Module) -> bool:
        if loss < self.best - 1e-3:
            self.best, self.num_bad = loss, 0
            self.best_state = copy.deepcopy(model.state_dict())
        else:
            self.num_bad += 1
        return self.num_bad >= self.patience


def samples(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator)
    noise = 0.3 * torch.randn(count, generator=generator)
    # The odd ones far out come late in the epoch.
    return TensorDataset(x, x.sum(1) + noise + 4.0 * (torch.arange(count) == 33))


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader[Any]) -> float:
    total, count = 0.0, 0
    for x, y in gangline.evaluate(loader):
        total += (model(x).squeeze(1) - y).square().sum().item()
        count += len(y)
    return gangline.mean(total / max(count, 1), weight=count)


def main() -> None:
    torch.manual_seed(13)
    torch.set_default_dtype(torch.float64)
    model: nn.Module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    train_loader: Any = DataLoader(samples(56, seed=1), batch_size=10)
    val_loader = DataLoader(samples(20, seed=2), batch_size=10)
    stopping = EarlyStopping(patience=2)

    gangline.init()
    model, optimizer, train_loader = gangline.prepare(model, optimizer, train_loader)
    curve = []
    for _ in gangline.epochs(30):
        for x, y in train_loader:
            optimizer.zero_grad()
            errors = (model(x).squeeze(1) - y).square()
            errors.mean().backward()
            optimizer.step()
            # One sample that is far off ends the epoch, whoever of the workers has it.
            if gangline.any(bool(errors.max() > LIMIT**2) and not gangline.is_ghost()):
                break
        curve.append(validate(model, val_loader))
        if stopping.is_over(curve[-1], model):
            break
    if gangline.is_main():
        result = {"model": model.state_dict(), "best": stopping.best_state, "curve": curve}
        torch.save(result, os.environ.get("RESULT", "best.pt"))


if __name__ == "__main__":
    main()
