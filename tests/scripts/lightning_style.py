# SPDX-License-Identifier: Apache-2.0
"""A module that knows its training step and its optimizers, and a trainer that knows the loop."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

if os.environ.get("PLAIN"):
    import no_gangline as gangline
else:
    import gangline

FEATURES, CLASSES = 10, 4


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 12), nn.Tanh(), nn.Linear(12, CLASSES))
        self.logged: dict[str, list[tuple[float, int]]] = {}

    def log(self, name: str, value: Tensor, batch_size: int) -> None:
        self.logged.setdefault(name, []).append((float(value), batch_size))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        output = self.net(x)
        self.log("val_loss", F.cross_entropy(output, y), len(y))
        self.log("val_acc", (output.argmax(1) == y).double().mean(), len(y))

    def configure_optimizers(self) -> tuple[torch.optim.Optimizer, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)


class Trainer:
    def __init__(self, *, max_epochs: int, gradient_clip_val: float) -> None:
        self.max_epochs = max_epochs
        self.gradient_clip_val = gradient_clip_val
        self.metrics: list[dict[str, float]] = []

    def fit(self, module: Module, train_loader: Any, val_loader: DataLoader[Any]) -> None:
        optimizer, scheduler = module.configure_optimizers()
        gangline.init()
        module, optimizer, train_loader = gangline.prepare(
            module, optimizer, train_loader, stateful=[scheduler]
        )
        for _ in gangline.epochs(self.max_epochs):
            module.train()
            for batch_idx, batch in enumerate(train_loader):

                def closure(batch: Any = batch, batch_idx: int = batch_idx) -> Tensor:
                    optimizer.zero_grad()
                    loss = module.training_step(batch, batch_idx)
                    loss.backward()
                    nn.utils.clip_grad_norm_(module.parameters(), self.gradient_clip_val)
                    return loss

                optimizer.step(closure)
                scheduler.step()
            self.validate(module, val_loader)

    def validate(self, module: Module, loader: DataLoader[Any]) -> None:
        module.eval()
        module.logged.clear()
        with torch.no_grad():
            for batch_idx, batch in enumerate(gangline.evaluate(loader)):
                module.validation_step(batch, batch_idx)
        names = ("val_loss", "val_acc")
        self.metrics.append({name: self.reduce(module.logged.get(name, [])) for name in names})

    def reduce(self, logged: list[tuple[float, int]]) -> float:
        count = sum(n for _, n in logged)
        value = sum(value * n for value, n in logged) / max(count, 1)
        return gangline.mean(value, weight=count)


def samples(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (count,), generator=generator)
    x = torch.randn(count, FEATURES, generator=generator) + y.view(-1, 1) / 2
    return TensorDataset(x, y)


def main() -> None:
    torch.manual_seed(6)
    torch.set_default_dtype(torch.float64)
    module = Module()
    trainer = Trainer(max_epochs=3, gradient_clip_val=0.5)
    trainer.fit(
        module,
        DataLoader(samples(58, seed=1), batch_size=14, shuffle=True, num_workers=1),
        DataLoader(samples(26, seed=2), batch_size=14),
    )
    if gangline.is_main():
        result = {"model": module.state_dict(), "curve": trainer.metrics}
        torch.save(result, os.environ.get("RESULT", "lightning.pt"))


if __name__ == "__main__":
    main()
