# SPDX-License-Identifier: Apache-2.0
"""What the workers of the compression tests do. Everything here runs inside worker processes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gangline

FEATURES = 32


def learn(epochs: int) -> tuple[list[torch.Tensor], list[float]]:
    """Trains a small network on a function; its parameters, and the loss of each epoch."""
    gangline.init(timeout_s=30)
    torch.manual_seed(0)
    x = torch.randn(96, FEATURES)
    y = torch.tanh(x @ torch.randn(FEATURES, 4))
    model = nn.Sequential(nn.Linear(FEATURES, 48), nn.BatchNorm1d(48), nn.Tanh(), nn.Linear(48, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    loader = DataLoader(TensorDataset(x, y), batch_size=24, shuffle=True)
    model, optimizer, loader = gangline.prepare(model, optimizer, loader)
    losses = []
    for _ in gangline.epochs(epochs):
        seen = []
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            seen.append(float(loss))
        losses.append(float(gangline.mean(sum(seen) / len(seen))))
    return [*(p.detach().clone() for p in model.parameters()), *model.buffers()], losses
