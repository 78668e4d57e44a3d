# SPDX-License-Identifier: Apache-2.0
"""A worker that trains a small residual network with BatchNorm on MNIST, and tests it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gangline
from gangline import zoo

LEARNING_RATE = 0.05
WIDTHS = (16, 32, 64, 128)
NUM_BLOCKS = 2


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One training."""

    data: str
    """The folder with MNIST."""
    seed: int
    samples: int
    epochs: int
    batch: int
    tested: int
    shares: tuple[float, ...]
    options: dict[str, Any] = {}
    """More options of `prepare`."""


class Block(nn.Module):
    """Two convolutions, added to what came in."""

    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(num_in, num_out, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(num_out),
            nn.ReLU(),
            nn.Conv2d(num_out, num_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(num_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or num_in != num_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(num_in, num_out, 1, stride=stride, bias=False), nn.BatchNorm2d(num_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Halves the image where the stride is 2."""
        return F.relu(self.body(x) + self.shortcut(x))


def small_resnet() -> nn.Sequential:
    """ResNet18 with a quarter of its channels: 20 BatchNorm layers, the last on images of 1x1."""
    stem = [
        nn.Conv2d(1, WIDTHS[0], 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(WIDTHS[0]),
        nn.ReLU(),
    ]
    blocks: list[nn.Module] = []
    num_in = WIDTHS[0]
    for stage, width in enumerate(WIDTHS):
        for number in range(NUM_BLOCKS):
            blocks.append(Block(num_in, width, 2 if stage and number == 0 else 1))
            num_in = width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(num_in, 10)]
    return nn.Sequential(*stem, *blocks, *head)


def digits(folder: str, split: str, count: int) -> TensorDataset:
    """The first images of MNIST, at half their size."""
    names = [f"{split}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
    images = zoo.idx(*(Path(folder) / name for name in names))
    pixels = (images.pixels[:count].float() / 255 - 0.1307) / 0.3081
    return TensorDataset(F.avg_pool2d(pixels.view(-1, 1, 28, 28), 2), images.labels[:count])


def train(case: Case) -> float:
    """The accuracy on the test set, in percent."""
    torch.set_num_threads(1)
    torch.manual_seed(case.seed)
    model: nn.Module = small_resnet()
    optimizer: Any = torch.optim.SGD(
        model.parameters(), lr=LEARNING_RATE, momentum=0.9, weight_decay=5e-4
    )
    loader: Any = DataLoader(
        digits(case.data, "train", case.samples),
        batch_size=case.batch,
        shuffle=True,
        drop_last=True,
    )
    warnings.simplefilter("ignore", UserWarning)  # small shares are the point here
    gangline.init()
    model, optimizer, loader = gangline.prepare(
        model, optimizer, loader, shares=case.shares, **case.options
    )
    for _ in range(case.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    model.eval()
    x, y = digits(case.data, "t10k", case.tested).tensors
    with torch.no_grad():
        return 100 * float((model(x).argmax(1) == y).float().mean())
