# SPDX-License-Identifier: Apache-2.0
"""What the workers of the twin test run."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import gangline
from gangline import zoo


def train_unlike() -> None:
    torch.manual_seed(0)
    model = zoo.build_model("lenet5", image_size=28)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(zoo.synthetic((1, 28, 28), num_samples=48 * 25), batch_size=48)
    gangline.init()
    model, optimizer, loader = gangline.prepare(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
