# SPDX-License-Identifier: Apache-2.0
"""Trains a model for `real_models.py` until it is ended, and notes when how many samples were done.

    real_models_train.py MODEL CONTENDER --batch 256 --folder FOLDER

The contender says how: `plain` is the loop without anything, on this worker's part of the batch;
`ddp` is torch's DistributedDataParallel over gloo; `gangline` is the loop with its two lines.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, Dataset

import gangline
from gangline.protocol.launch import Launch
from gangline.zoo.convnets import lenet5
from gangline.zoo.language import CharTransformer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CONTEXT = 256
NUM_SAMPLES = 1 << 17
VOCABULARY = {"tiny": 96, "gpt26": 96, "gpt124": 25_000}
PIXELS = {"resnet50": 64, "lenet5": 28}
CLASSES = 100
KERNELS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""The same for all parts: which ones flash attention takes depends on their size."""


class Made(Dataset[Any]):
    """Made-up samples: each is cut out of one table, so that loading them costs little."""

    def __init__(self, model: str) -> None:
        generator = torch.Generator().manual_seed(0)
        self._is_text = model in VOCABULARY
        if self._is_text:
            shape = (1 << 20,)
            self._table = torch.randint(0, VOCABULARY[model], shape, generator=generator)
        else:
            channels = 1 if model == "lenet5" else 3
            shape = (2048, channels, PIXELS[model], PIXELS[model])
            self._table = torch.randn(shape, generator=generator)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.__getitems__([index])
        return x[0], y[0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        rows = torch.as_tensor(indices)
        if not self._is_text:
            return self._table[rows % len(self._table)], rows % CLASSES % 10
        places = (rows * 7919 % (len(self._table) - CONTEXT - 1))[:, None]
        windows = self._table[places + torch.arange(CONTEXT + 1)]
        return windows[:, :-1], windows[:, 1:]


def build(model: str) -> nn.Module:
    """The model: 26 and 124 million parameters, ResNet-50, LeNet-5, and one to try things out."""
    sizes = {"tiny": (64, 4, 2), "gpt26": (512, 8, 8), "gpt124": (768, 12, 12)}
    torch.manual_seed(0)
    if model in sizes:
        width, heads, depth = sizes[model]
        vocabulary = VOCABULARY[model]
        return CharTransformer(
            vocabulary, context=CONTEXT, width=width, num_heads=heads, depth=depth
        )
    if model == "resnet50":
        from torchvision.models import resnet50  # where it is there

        return resnet50(num_classes=CLASSES)
    return lenet5()


class Watch:
    """Notes the end of every step, in a file that outlives the process."""

    def __init__(self, folder: Path, worker: int) -> None:
        self._file: IO[str] = (folder / f"{worker}.txt").open("w", buffering=1)

    def note(self, samples: int, loss: Tensor | None = None) -> None:
        said = "" if loss is None else f" {float(loss):.4f}"
        self._file.write(f"{time.time():.6f} {samples}{said}\n")


def train(model: nn.Module, loader: Any, optimizer: Any, device: Any, watch: Watch) -> None:
    """Steps, for as long as the loader has batches; the loss is looked at now and then."""
    is_text = isinstance(getattr(model, "module", model), CharTransformer)
    has_autocast = device.type == "cuda"
    for number, (x, y) in enumerate(loader):
        inputs, targets = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad()
        with (
            torch.autocast(device.type, dtype=torch.bfloat16, enabled=has_autocast),
            sdpa_kernel(KERNELS) if is_text else contextlib.nullcontext(),
        ):
            logits = model(inputs)
            loss = F.cross_entropy(logits.flatten(0, -2) if is_text else logits, targets.flatten())
        loss.backward()
        optimizer.step()
        # What is queued is not done: a look at the loss waits for it.
        watch.note(len(x), loss if number % 10 == 9 else None)


def as_is(batch: Any) -> Any:
    """The batch as the data set gave it."""
    return batch


def loader_of(data: Dataset[Any], batch: int, sampler: Any = None) -> DataLoader[Any]:
    return DataLoader(
        data, batch_size=batch, shuffle=sampler is None, sampler=sampler, collate_fn=as_is
    )


def join_ddp(folder: Path, worker: int, workers: int) -> None:
    if Path("/sys/class/net/eth0").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "eth0")
    store = dist.FileStore(str(folder / "store"), workers)
    dist.init_process_group(
        "gloo", store=store, rank=worker, world_size=workers, timeout=timedelta(seconds=60)
    )


def for_ever() -> Iterator[int]:
    epoch = 0
    while True:
        yield epoch
        epoch += 1


def main() -> None:
    """Trains until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("contender", choices=["plain", "ddp", "gangline"])
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--parts", required=True, help="how strong each worker is: 50,25,10")
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    launch = Launch.from_environment(os.environ)
    assert launch is not None, "started by gangline run"
    worker = launch.worker
    parts = [float(part) for part in options.parts.split(",")]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    model, data = build(options.model).to(device), Made(options.model)
    watch = Watch(options.folder, worker)
    if options.contender == "gangline":
        gangline.init()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
        loader: Any = loader_of(data, options.batch)
        model, optimizer, loader = gangline.prepare(model, optimizer, loader)
        for _ in gangline.epochs(1000):
            train(model, loader, optimizer, device, watch)
        return
    own = max(1, round(options.batch * parts[worker] / sum(parts)))
    sampler = None
    if options.contender == "ddp":
        join_ddp(options.folder, worker, len(parts))
        model = nn.parallel.DistributedDataParallel(model)
        own = max(1, options.batch // len(parts))
        sampler = torch.utils.data.DistributedSampler(data)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    for epoch in for_ever():
        if sampler is not None:
            sampler.set_epoch(epoch)
        train(model, loader_of(data, own, sampler), optimizer, device, watch)


if __name__ == "__main__":
    main()
