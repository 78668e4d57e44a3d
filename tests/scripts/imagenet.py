# SPDX-License-Identifier: Apache-2.0
"""A residual network with meters, accuracy among the first k, and a checkpoint of the best model."""

from __future__ import annotations

import math
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

CLASSES = 6


class AverageMeter:
    """A mean that is kept while it is computed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sum, self.count = 0.0, 0

    def update(self, value: float, n: int = 1) -> None:
        self.sum += value * n
        self.count += n

    def all_reduce(self) -> None:
        self.sum, self.count = gangline.sum(torch.tensor([self.sum, self.count])).tolist()

    @property
    def avg(self) -> float:
        return self.sum / max(self.count, 1)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(2, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(2, width)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(out)))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layers = nn.Sequential(Block(8), Block(8))
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))


def images(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, CLASSES, (count,), generator=generator)
    noise = torch.randn(count, 3, 6, 6, generator=generator)
    return TensorDataset(noise + target.view(-1, 1, 1, 1) / 3, target)


def accuracy(output: Tensor, target: Tensor, topk: tuple[int, ...]) -> list[float]:
    """How many of 100 targets are among the k that are thought most likely."""
    _, best = output.topk(max(topk), dim=1)
    correct = best == target.unsqueeze(1)
    return [100.0 * correct[:, :k].any(1).double().mean().item() for k in topk]


def train(loader: Any, model: nn.Module, criterion: nn.Module, optimizer: Any) -> list[float]:
    losses, top1, top3 = AverageMeter("Loss"), AverageMeter("Acc@1"), AverageMeter("Acc@3")
    model.train()
    for image, target in loader:
        output = model(image)
        loss = criterion(output, target)
        acc1, acc3 = accuracy(output, target, topk=(1, 3))
        n = 0 if gangline.is_ghost() else len(image)
        losses.update(loss.item(), n)
        top1.update(acc1, n)
        top3.update(acc3, n)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for meter in (losses, top1, top3):
        meter.all_reduce()
    return [losses.avg, top1.avg, top3.avg]


def validate(loader: DataLoader[Any], model: nn.Module, criterion: nn.Module) -> list[float]:
    losses, top1, top3 = AverageMeter("Loss"), AverageMeter("Acc@1"), AverageMeter("Acc@3")
    model.eval()
    with torch.no_grad():
        for image, target in gangline.evaluate(loader):
            output = model(image)
            acc1, acc3 = accuracy(output, target, topk=(1, 3))
            losses.update(criterion(output, target).item(), len(image))
            top1.update(acc1, len(image))
            top3.update(acc3, len(image))
    for meter in (losses, top1, top3):
        meter.all_reduce()
    return [losses.avg, top1.avg, top3.avg]


def adjust_learning_rate(optimizer: torch.optim.Optimizer, epoch: int, base: float) -> None:
    """Warms up for an epoch, then follows half a cosine."""
    lr = base / 2 if epoch == 0 else base * 0.5 * (1 + math.cos(math.pi * epoch / 4))
    for group in optimizer.param_groups:
        group["lr"] = lr


def main() -> None:
    torch.manual_seed(2)
    torch.set_default_dtype(torch.float64)
    model = ResNet()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    order = torch.Generator().manual_seed(2)  # of its own: it is kept when the first worker is lost
    train_loader = DataLoader(
        images(65, seed=3), batch_size=16, shuffle=True, num_workers=2, generator=order
    )
    val_loader = DataLoader(images(29, seed=4), batch_size=8, num_workers=1)

    gangline.init()
    model, optimizer, train_loader = gangline.prepare(model, optimizer, train_loader)
    best_acc1, curve, shown = 0.0, [], []
    for epoch in gangline.epochs(3):
        adjust_learning_rate(optimizer, epoch, 0.1)
        shown.append(train(train_loader, model, criterion, optimizer))
        loss, acc1, acc3 = validate(val_loader, model, criterion)
        best_acc1 = max(acc1, best_acc1)
        curve.append([loss, acc1, acc3])
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "curve": curve,
            "best": best_acc1,
            "shown": shown,  # meters know nothing of a batch that was lost and done again
        }
        gangline.save(checkpoint, os.environ.get("RESULT", "checkpoint.pt"))


if __name__ == "__main__":
    main()
