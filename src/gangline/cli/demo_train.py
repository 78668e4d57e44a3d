# SPDX-License-Identifier: Apache-2.0
"""The script that the demo runs: LeNet-5 on handwritten digits, with gangline's two lines.

It is an ordinary training script: `python -m gangline.cli.demo_train --epochs 3` runs it alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import gangline
from gangline import zoo

IMAGE_SIZE = 28


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--global-batch", type=int, default=256)
    parser.add_argument("--result", type=Path, help="write the accuracy to this file")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = zoo.build_model("lenet5", image_size=IMAGE_SIZE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002)
    train = DataLoader(zoo.digits("train", size=IMAGE_SIZE), batch_size=64, shuffle=True)
    test = DataLoader(zoo.digits("test", size=IMAGE_SIZE), batch_size=64)

    gangline.init()
    model, optimizer, train = gangline.prepare(
        model, optimizer, train, global_batch=options.global_batch
    )
    for _ in gangline.epochs(options.epochs):
        for x, y in train:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            gangline.log(loss=loss)

    accuracy = evaluate(model, test)
    if gangline.is_main() and options.result is not None:
        options.result.write_text(json.dumps({"accuracy": accuracy}))


@torch.no_grad()
def evaluate(model: torch.nn.Module, loader: DataLoader[tuple[torch.Tensor, ...]]) -> float:
    """The accuracy over all workers' parts of the test data."""
    correct = count = 0
    model.eval()
    for x, y in gangline.evaluate(loader):
        correct += int((model(x).argmax(1) == y).sum())
        count += len(y)
    return gangline.mean(correct / max(count, 1), weight=count)


if __name__ == "__main__":
    main()
