# SPDX-License-Identifier: Apache-2.0
"""Two views of a sample through one network, and a loss of each pair by itself."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

if os.environ.get("PLAIN"):
    import no_gangline as gangline
else:
    import gangline

FEATURES, MARGIN = 9, 1.0


class Pairs(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Two disturbed views of one thing, or of two different ones."""

    def __init__(self, count: int, seed: int) -> None:
        self.seed = seed
        self.things = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.things)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.seed * 1000 + index)
        is_same = index % 2 == 0
        other = self.things[index if is_same else (index + 7) % len(self)]
        first = self.things[index] + 0.1 * torch.randn(FEATURES, generator=generator)
        second = other + 0.1 * torch.randn(FEATURES, generator=generator)
        return first, second, torch.tensor(float(is_same))


def contrastive_loss(first: Tensor, second: Tensor, is_same: Tensor) -> Tensor:
    distance = F.pairwise_distance(first, second)
    pulled = is_same * distance.pow(2)
    pushed = (1 - is_same) * F.relu(MARGIN - distance).pow(2)
    return (pulled + pushed).mean()


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader[Any]) -> float:
    total, count = 0.0, 0
    for first, second, is_same in gangline.evaluate(loader):
        total += contrastive_loss(model(first), model(second), is_same).item() * len(first)
        count += len(first)
    return gangline.mean(total / max(count, 1), weight=count)


def main() -> None:
    torch.manual_seed(12)
    torch.set_default_dtype(torch.float64)
    model: nn.Module = nn.Sequential(nn.Linear(FEATURES, 12), nn.ReLU(), nn.Linear(12, 4))
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=1e-2)
    train_loader: Any = DataLoader(Pairs(44, seed=1), batch_size=9, shuffle=True)
    val_loader = DataLoader(Pairs(20, seed=2), batch_size=9)

    gangline.init()
    model, optimizer, train_loader = gangline.prepare(model, optimizer, train_loader)
    curve = []
    for _ in gangline.epochs(4):
        for first, second, is_same in train_loader:
            optimizer.zero_grad()
            contrastive_loss(model(first), model(second), is_same).backward()
            optimizer.step()
        curve.append(validate(model, val_loader))
    if gangline.is_main():
        result = {"model": model.state_dict(), "curve": curve}
        torch.save(result, os.environ.get("RESULT", "siamese.pt"))


if __name__ == "__main__":
    main()
