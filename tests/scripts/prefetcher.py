# SPDX-License-Identifier: Apache-2.0
"""A prefetcher as for CUDA: the loop gets batch k when batch k + 1 has been asked for."""

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

CLASSES = 5


class DataPrefetcher:
    def __init__(self, loader: Any) -> None:
        self.loader = iter(loader)
        self.preload()

    def preload(self) -> None:
        """What would be copied to the device while the model computes."""
        try:
            images, target = next(self.loader)
        except StopIteration:
            self.batch: tuple[Tensor, Tensor] | None = None
        else:
            self.batch = images.sub(0.1).div(1.5), target

    def next(self) -> tuple[Tensor, Tensor] | None:
        batch = self.batch
        if batch is not None:
            self.preload()
        return batch


def images(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (count,), generator=generator)
    x = torch.randn(count, 2, 5, 5, generator=generator) + y.view(-1, 1, 1, 1) / 2
    return TensorDataset(x, y)


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader[Any]) -> float:
    total, count = 0.0, 0
    for x, y in gangline.evaluate(loader):
        total += F.cross_entropy(model(x.sub(0.1).div(1.5)), y, reduction="sum").item()
        count += len(y)
    return gangline.mean(total / max(count, 1), weight=count)


def main() -> None:
    torch.manual_seed(9)
    torch.set_default_dtype(torch.float64)
    model: nn.Module = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, CLASSES)
    )
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    order = torch.Generator().manual_seed(9)  # of its own: an epoch that comes again draws no more
    train_loader: Any = DataLoader(
        images(49, seed=1), batch_size=12, shuffle=True, num_workers=2, generator=order
    )
    val_loader = DataLoader(images(21, seed=2), batch_size=12)

    gangline.init()
    model, optimizer, train_loader = gangline.prepare(model, optimizer, train_loader)
    curve = {}
    for epoch in gangline.epochs(4):  # one whose end was lost comes again
        prefetcher = DataPrefetcher(train_loader)
        while (batch := prefetcher.next()) is not None:
            x, y = batch
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        curve[epoch] = validate(model, val_loader)
    if gangline.is_main():
        result = {"model": model.state_dict(), "curve": curve}
        torch.save(result, os.environ.get("RESULT", "prefetcher.pt"))


if __name__ == "__main__":
    main()
