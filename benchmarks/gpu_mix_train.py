# SPDX-License-Identifier: Apache-2.0
"""A convolutional network on made-up images, on the GPU where there is one: for `gpu_mix.py`.

Before it joins the job, each worker measures alone what some numbers of samples cost it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gangline

EPOCH_STEPS = 8
NODE = "GANGLINE_BENCH_NODE"
"""The variable with the name of the worker's node."""


def build(width: int) -> nn.Sequential:
    """Three convolutions and a linear layer, for images of 32 by 32 pixels."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(width * 64, 10),
    )


def measure_alone(model: nn.Module, device: torch.device, batch: int) -> dict[int, float]:
    """Seconds of a forward and backward pass, by the number of samples."""
    found = {}
    for samples in (max(1, batch // 16), max(2, batch // 4), batch):
        images = torch.randn(samples, 3, 32, 32, device=device)
        labels = torch.randint(0, 10, (samples,), device=device)
        times: list[float] = []
        while len(times) < 3 or (sum(times) < 0.4 and len(times) < 12):
            started = time.perf_counter()
            F.cross_entropy(model(images), labels).backward()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        found[samples] = median(times[1:])
    model.zero_grad()
    return found


def main() -> None:
    """Trains for so many steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = build(options.width).to(device)
    alone = measure_alone(model, device, options.batch)
    node = os.environ[NODE]
    (options.folder / f"{node}.json").write_text(
        json.dumps({"device": device.type, "alone": alone})
    )
    gangline.init()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    count = EPOCH_STEPS * options.batch
    data = TensorDataset(torch.randn(count, 3, 32, 32), torch.randint(0, 10, (count,)))
    loader = DataLoader(data, batch_size=options.batch, shuffle=True)
    model, optimizer, loader = gangline.prepare(model, optimizer, loader)
    for _ in gangline.epochs(-(-options.steps // EPOCH_STEPS)):
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(images.to(device)), labels.to(device)).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
