# SPDX-License-Identifier: Apache-2.0
"""What `commits.py` has trained: it uses the public names alone, so that any version can run it."""

from __future__ import annotations

import sys
import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import gangline
from gangline.zoo.convnets import lenet5
from gangline.zoo.perceptron import wide_mlp


def main() -> None:
    """Trains one epoch and prints, on the main worker, how long its second half took."""
    name, steps, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = lenet5() if name == "lenet5" else wide_mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.randn(batch * steps, 1, 28, 28)
    labels = torch.randint(0, 10, (batch * steps,))
    gangline.init()
    model, optimizer, loader = gangline.prepare(
        model, optimizer, DataLoader(TensorDataset(images, labels), batch_size=batch)
    )
    begin = time.perf_counter()
    for number, (x, y) in enumerate(loader):
        if number == steps // 2:
            begin = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    took_s = time.perf_counter() - begin
    if gangline.is_main():
        print(f"half of the steps took {took_s:.6f} s", flush=True)


if __name__ == "__main__":
    main()
