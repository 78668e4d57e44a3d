# SPDX-License-Identifier: Apache-2.0
"""One worker of a training contender: takes a number of steps whenever it is asked to.

What it is to do is a `Part` in the environment. All contenders train the same model on the same
synthetic data with the same loop; they differ in what joins the workers.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

import gangline
from gangline import zoo
from teams import serve

if TYPE_CHECKING:
    from collections.abc import Iterator

PART_VARIABLE = "GANGLINE_BENCH_PART"
STEPS_PER_EPOCH = 32

Batches = DataLoader[tuple[Tensor, Tensor]]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker of a contender is to do."""

    contender: str
    """`ddp` (plain DistributedDataParallel over gloo), or `gangline-` and the transport."""
    model: str
    """A name of the zoo."""
    batch: int
    """Samples per worker and step."""
    rank: int
    workers: int
    folder: str
    """Where the workers of this contender find each other."""
    set_to_none: bool
    """How gradients are cleared: set to None, or filled with zeros."""

    def environment(self) -> dict[str, str]:
        """What the worker process must find in its environment."""
        return {PART_VARIABLE: msgspec.json.encode(self).decode(), "OMP_NUM_THREADS": "1"}


def join_ddp(part: Part, model: nn.Module, data: Any) -> tuple[nn.Module, Batches]:
    """Plain DDP as its documentation shows it."""
    rendezvous = f"file://{part.folder}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=part.rank, world_size=part.workers)
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader: Batches = DataLoader(data, batch_size=part.batch, sampler=sampler)
    return nn.parallel.DistributedDataParallel(model), loader


def join_gangline(
    part: Part, model: nn.Module, optimizer: torch.optim.Optimizer, data: Any
) -> tuple[nn.Module, Batches]:
    """The two lines."""
    loader: Batches = DataLoader(data, batch_size=part.batch * part.workers, shuffle=True)
    gangline.init()
    model, _, loader = gangline.prepare(
        model, optimizer, loader, global_batch=part.batch * part.workers
    )
    return model, loader


def train(part: Part) -> Iterator[None]:
    """Trains for ever; each `next` is one step."""
    torch.manual_seed(0)
    num_samples = part.batch * part.workers * STEPS_PER_EPOCH
    data = zoo.synthetic((1, 28, 28), num_samples=num_samples)
    model = zoo.build_model(part.model, image_size=28)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    if part.contender == "ddp":
        model, loader = join_ddp(part, model, data)
    else:
        model, loader = join_gangline(part, model, optimizer, data)
    while True:
        for images, labels in loader:
            optimizer.zero_grad(set_to_none=part.set_to_none)
            loss: Any = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            yield


def peak_memory_bytes() -> int:
    """The most memory that this process ever held; not `ru_maxrss`, which starts at the parent's."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    """Answers `{"steps": k}` with the seconds that k steps took, and the peak memory so far."""
    torch.set_num_threads(1)
    steps = train(msgspec.json.decode(os.environ[PART_VARIABLE], type=Part))

    def answer(request: dict[str, Any]) -> dict[str, float]:
        began = time.perf_counter()
        for _ in range(request["steps"]):
            next(steps)
        return {"seconds": time.perf_counter() - began, "peak_bytes": peak_memory_bytes()}

    serve(answer)


if __name__ == "__main__":
    main()
