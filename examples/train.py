# SPDX-License-Identifier: Apache-2.0
"""Trains LeNet-5 on handwritten digits, on one process or on many unequal ones.

python examples/train.py
torchrun --nproc-per-node 2 examples/train.py
gangline run --nodes 4 --speeds 1,0.5,0.2,0.1 examples/train.py
"""

import argparse

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import gangline
from gangline import zoo


def accuracy(model: torch.nn.Module, loader: DataLoader) -> float:
    """The fraction of right answers, over all workers; each sample is counted once."""
    model.eval()
    correct = count = 0
    with torch.no_grad():
        for images, labels in gangline.evaluate(loader):
            correct += int((model(images).argmax(1) == labels).sum())
            count += len(labels)
    model.train()
    return gangline.mean(correct / max(count, 1), weight=count)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train LeNet-5 on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--batch", type=int, default=64, help="samples per update, over all workers"
    )
    parser.add_argument("--rate", type=float, default=0.002, help="learning rate")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = zoo.build_model("lenet5", image_size=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    train_loader = DataLoader(zoo.digits("train"), batch_size=options.batch, shuffle=True)
    test_loader = DataLoader(zoo.digits("test"), batch_size=256)

    gangline.init()
    model, optimizer, train_loader = gangline.prepare(
        model, optimizer, train_loader, global_batch=options.batch
    )

    for epoch in gangline.epochs(options.epochs):
        for images, labels in train_loader:
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
        right = accuracy(model, test_loader)
        if gangline.is_main():
            print(f"epoch {epoch + 1}: {right:.1%} of the test digits are right", flush=True)

    if gangline.is_main():
        print(f"trained by {gangline.world_size()} worker(s)")


if __name__ == "__main__":
    main()
