# SPDX-License-Identifier: Apache-2.0
"""What the workers of the GPU tests do, each on the device that its case names."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gangline
from gangline.spec.errors import GanglineError

FEATURES, CLASSES = 64, 10
DEVICE_SLEEP_CYCLES = 60_000_000
"""At least 30 ms on a GPU of up to 2 GHz."""


@dataclass(frozen=True)
class Case:
    """One training: where each worker computes, and how."""

    devices: tuple[str, ...]
    shares: tuple[float, ...] | None = None
    samples: int = 104
    batch: int = 32
    epochs: int = 1
    width: int = 1024
    dtype: torch.dtype = torch.float32
    half: bool = False
    """Under autocast to float16, with a GradScaler."""
    scale: float = 1024.0
    sleeps: bool = False
    """Whether the model keeps the device busy while the host goes on."""
    is_ahead: bool = False
    """Whether the next batch is copied to the device before the present one is computed."""
    synced: bool = False
    """Whether there are BatchNorm layers, which normalise over all workers."""
    keeps_all: bool = True
    """Whether the parameters are kept after every step, or the last ones only."""


@dataclass(frozen=True)
class Outcome:
    """What one worker saw."""

    parameters: Tensor
    """After every step that is kept, in one row each."""
    sizes: list[int]
    """Samples per step."""
    scale: float


class Sleep(nn.Module):
    """Work that takes the device a while and the host no time."""

    def forward(self, x: Tensor) -> Tensor:
        torch.cuda._sleep(DEVICE_SLEEP_CYCLES)
        return x


def build(case: Case) -> nn.Sequential:
    """Three units of gradients at the default width, so that some travel during the pass."""
    torch.manual_seed(0)
    width = case.width
    model = nn.Sequential(
        *([Sleep()] if case.sleeps else []),
        nn.Linear(FEATURES, width),
        *([nn.BatchNorm1d(width)] if case.synced else []),
        nn.Tanh(),
        nn.Linear(width, width),
        *([nn.BatchNorm1d(width, momentum=None)] if case.synced else []),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, CLASSES),
    )
    return model.to(case.dtype)


def loader_of(case: Case) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(case.samples, FEATURES, generator=generator).to(case.dtype)
    y = torch.randint(0, CLASSES, (case.samples,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=case.batch)


def flat_parameters(model: nn.Module) -> Tensor:
    """All parameters and buffers in one row of host memory."""
    return torch.cat([p.detach().double().cpu().flatten() for p in model.state_dict().values()])


def on_device(loader: Any, device: torch.device, *, is_ahead: bool) -> Any:
    """The batches, copied to the device: each when it is wanted, or one ahead."""
    batches = ([tensor.to(device) for tensor in batch] for batch in loader)
    following = next(batches) if is_ahead else None
    for batch in batches:
        present, following = (following, batch) if is_ahead else (batch, None)
        yield present
    if following is not None:
        yield following


def train(case: Case) -> Outcome:
    """A worker of the job."""
    gangline.init()
    return _train(case, torch.device(case.devices[gangline.rank()]), is_worker=True)


def train_alone(case: Case) -> Outcome:
    """The plain script, on the first device, that the job must agree with."""
    return _train(case, torch.device(case.devices[0]), is_worker=False)


def _train(case: Case, device: torch.device, *, is_worker: bool) -> Outcome:
    model, loader = build(case).to(device), loader_of(case)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, init_scale=case.scale, enabled=case.half)
    if is_worker:
        model, optimizer, loader = gangline.prepare(
            model,
            optimizer,
            loader,
            global_batch=case.batch,
            shares=case.shares,
            stateful=[scaler],
            sync_batchnorm=case.synced,
        )
    history, sizes = [], []
    for _ in range(case.epochs):
        for x, y in on_device(loader, device, is_ahead=case.is_ahead):
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.float16) if case.half else nullcontext():
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if not case.keeps_all:
                history.clear()
            history.append(flat_parameters(model))
            sizes.append(len(y))
    return Outcome(torch.stack(history), sizes, scaler.get_scale())


def host_seconds(case: Case) -> list[float]:
    """What each step of a worker that is alone takes its host, while the device computes."""
    gangline.init()
    device = torch.device(case.devices[0])
    model = build(case).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, loader = gangline.prepare(model, optimizer, loader_of(case))
    x = torch.randn(case.batch, FEATURES, device=device)
    took = []
    begin = time.perf_counter()
    for number, _ in enumerate(loader):
        took.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        torch.cuda.set_sync_debug_mode("error" if number > 2 else "default")
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    torch.cuda.set_sync_debug_mode("default")
    return took


def message_of_init() -> str:
    """What a worker is told that cannot take part."""
    try:
        gangline.init(timeout_s=20)
    except GanglineError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
