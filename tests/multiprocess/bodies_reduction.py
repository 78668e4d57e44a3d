# SPDX-License-Identifier: Apache-2.0
"""Workers whose loss is, or is not, reduced as they said."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from bodies_runtime import FEATURES, TIMEOUT_S, vectors
from torch import nn
from torch.utils.data import DataLoader

import gangline


def train_with_losses(said: str, true: str, shares: tuple[float, ...]) -> list[tuple[str, str]]:
    """The warnings of a job, and the files that they point to."""
    gangline.init(timeout_s=TIMEOUT_S)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader: Any = DataLoader(vectors(320), batch_size=16, shuffle=True)
    model, optimizer, loader = gangline.prepare(
        model, optimizer, loader, shares=shares, reduction=said
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            for x, y in loader:
                optimizer.zero_grad()
                F.mse_loss(model(x), y, reduction=true).backward()
                optimizer.step()
    return [(str(one.message), Path(one.filename).name) for one in caught]
