# SPDX-License-Identifier: Apache-2.0
"""The script of `storms.py`: a small model, and steps that take a while."""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gangline


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=480)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--think-s", type=float, default=0.1)
    options = parser.parse_args()
    torch.manual_seed(3)
    torch.set_num_threads(1)
    gangline.init()
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = TensorDataset(torch.randn(options.samples, 8), torch.randn(options.samples, 1))
    loader = DataLoader(data, batch_size=options.batch, shuffle=True)
    model, optimizer, loader = gangline.prepare(model, optimizer, loader)
    for epoch in gangline.epochs(options.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
            time.sleep(options.think_s)
        if gangline.is_main():
            print(f"epoch {epoch} is done", flush=True)


if __name__ == "__main__":
    main()
