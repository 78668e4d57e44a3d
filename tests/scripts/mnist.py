# SPDX-License-Identifier: Apache-2.0
"""Digits by a small convolutional network: train(), test() and StepLR, as in PyTorch's examples."""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

if os.environ.get("PLAIN"):
    import no_gangline as gangline
else:
    import gangline


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.conv2 = nn.Conv2d(4, 8, 3)
        self.fc1 = nn.Linear(32, 16)
        self.fc2 = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = torch.flatten(F.max_pool2d(x, 2), 1)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def digits(count: int, seed: int) -> TensorDataset:
    shapes = torch.randn(10, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return TensorDataset(
        shapes[labels] + 0.3 * torch.randn(count, 1, 8, 8, generator=generator), labels
    )


def train(model: nn.Module, train_loader: Any, optimizer: optim.Optimizer) -> None:
    model.train()
    for data, target in train_loader:
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()


def test(model: nn.Module, test_loader: DataLoader[Any]) -> list[float]:
    model.eval()
    test_loss, correct, count = 0.0, 0, 0
    with torch.no_grad():
        for data, target in gangline.evaluate(test_loader):
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            correct += int((output.argmax(1) == target).sum())
            count += len(target)
    total = torch.tensor([test_loss, correct]) / max(count, 1)
    return gangline.mean(total, weight=count).tolist()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--result", default=os.environ.get("RESULT", "mnist.pt"))
    args = parser.parse_args()

    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    train_loader = DataLoader(digits(82, seed=1), batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(digits(31, seed=2), batch_size=10)
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)

    gangline.init()
    model, optimizer, train_loader = gangline.prepare(
        model, optimizer, train_loader, stateful=[scheduler]
    )
    curve = []
    for _ in gangline.epochs(args.epochs):
        train(model, train_loader, optimizer)
        curve.append(test(model, test_loader))
        scheduler.step()
    if gangline.is_main():
        torch.save({"model": model.state_dict(), "curve": curve}, args.result)


if __name__ == "__main__":
    main()
