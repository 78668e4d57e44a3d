# SPDX-License-Identifier: Apache-2.0
"""BatchNorm over all workers: as workers do it, and plain torch on the global batch."""

from __future__ import annotations

import copy
import io
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gangline
from gangline.worker import api

FEATURES, HIDDEN = 5, 12
TIMEOUT_S = 30.0

LAYERS: dict[str, tuple[tuple[int, ...], Any]] = {
    "1d": ((HIDDEN,), lambda: nn.BatchNorm1d(HIDDEN)),
    "1d of sequences": ((3, 4), lambda: nn.BatchNorm1d(3)),
    "2d": ((3, 2, 2), lambda: nn.BatchNorm2d(3)),
    "3d": ((3, 2, 2, 1), lambda: nn.BatchNorm3d(3)),
    "cumulative": ((3, 2, 2), lambda: nn.BatchNorm2d(3, momentum=None)),
    "untracked": ((3, 2, 2), lambda: nn.BatchNorm2d(3, track_running_stats=False)),
    "not affine": ((3, 2, 2), lambda: nn.BatchNorm2d(3, affine=False)),
    "torch's own": ((3, 2, 2), lambda: nn.SyncBatchNorm(3)),
}
"""The shape in which the layer sees a sample, and the layer."""


@dataclass(frozen=True)
class Synced:
    """A job with batch statistics over all workers."""

    layer: str = "2d"
    shares: tuple[float, ...] = (5.0, 2.0, 1.0)
    samples: int = 20
    batch: int = 8
    epochs: int = 2
    accumulate: int = 1
    loss: str = "mean"
    """`mean`, `sum`, or `weighted`: a mean weighted by numbers of the samples."""
    poison: bool = False
    """Whether ghosts are infinite."""
    freeze: bool = False
    """Whether the first layer's weight and bias are frozen."""


@dataclass(frozen=True)
class Update:
    """What an update found and left."""

    samples: tuple[tuple[int, ...], ...]
    """Per part of the window, this worker's samples."""
    gradients: dict[str, Tensor]
    state: dict[str, Tensor]


def data(job: Synced) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(job.samples, FEATURES, generator=generator, dtype=torch.float64) * 2 + 3
    y = torch.randn(job.samples, 1, generator=generator, dtype=torch.float64)
    weights = torch.rand(job.samples, generator=generator, dtype=torch.float64) + 0.1
    return TensorDataset(x, y, weights, torch.arange(job.samples))


def build(job: Synced) -> nn.Module:
    torch.manual_seed(0)
    shape, layer = LAYERS[job.layer]
    model = nn.Sequential(
        nn.Linear(FEATURES, HIDDEN),
        nn.Unflatten(1, shape),
        layer(),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(HIDDEN, 6),
        nn.BatchNorm1d(6),
        nn.Tanh(),
        nn.Linear(6, 1),
    ).double()
    for parameter in model[2].parameters():
        nn.init.normal_(parameter)
        parameter.requires_grad_(not job.freeze)
    return model


def loss_of(job: Synced, output: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    each = (output - y).square().squeeze(1)
    if job.loss == "weighted":
        return (each * weights).sum() / weights.sum()
    return each.mean() if job.loss == "mean" else each.sum()


def weigh(batch: Any) -> float:
    return float(batch[2].sum())


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in model.state_dict().items()}


def prepared(job: Synced, model: nn.Module, **options: Any) -> Any:
    gangline.init(timeout_s=TIMEOUT_S)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return gangline.prepare(
        model,
        optimizer,
        DataLoader(data(job), batch_size=job.batch, shuffle=True),
        shares=job.shares,
        accumulate=job.accumulate,
        reduction="sum" if job.loss == "sum" else "mean",
        weight=weigh if job.loss == "weighted" else None,
        sync_batchnorm=True,
        **options,
    )


def run_synced(job: Synced) -> list[Update]:
    """All updates, as a worker."""
    torch.set_num_threads(1)
    model, optimizer, loader = prepared(job, build(job))
    updates, parts = [], []
    for _ in range(job.epochs):
        for x, y, weights, ids in loader:
            is_ghost = api._job.training.present_pass.weight_now() == 0
            parts.append(() if is_ghost else tuple(ids.tolist()))
            if is_ghost and job.poison:
                x = x * float("inf")
            loss_of(job, model(x), y, weights).backward()
            if gangline.is_update():
                gradients = gradients_of(model)
                optimizer.step()
                optimizer.zero_grad()
                updates.append(Update(tuple(parts), gradients, state_of(model)))
                parts = []
    return updates


def reference(job: Synced, answers: list[list[Update]]) -> list[Update]:
    """What one process makes of the same global batches: of each part of a window, all samples."""
    model = build(job)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y, weights, _ = data(job).tensors
    updates = []
    for workers in zip(*answers, strict=True):
        parts = [
            sum(of_part, ()) for of_part in zip(*(one.samples for one in workers), strict=True)
        ]
        ids = [number for part in parts for number in part]
        for part in parts:
            own = list(part)
            if own:
                loss = loss_of(job, model(x[own]), y[own], weights[own])
                if job.loss == "mean":
                    loss = loss * (len(own) / len(ids))
                elif job.loss == "weighted":
                    loss = loss * (weights[own].sum() / weights[ids].sum())
                loss.backward()
        gradients = gradients_of(model)
        optimizer.step()
        optimizer.zero_grad()
        updates.append(Update(tuple(parts), gradients, state_of(model)))
    return updates


# --- what a prepared model still is ------------------------------------------------------------------


def one_loop(job: Synced, model: nn.Module, each: Any) -> Any:
    """Trains, and calls `each` after every backward pass."""
    model, optimizer, loader = prepared(job, model)
    seen = []
    for x, y, weights, _ in loader:
        loss_of(job, model(x), y, weights).backward()
        seen.append(each(model, x))
        optimizer.step()
        optimizer.zero_grad()
    return seen


def copies_are_plain(job: Synced) -> dict[str, Any]:
    """A copy is used by one worker alone, as no layer that exchanges could be."""
    model = build(job)

    def each(model: nn.Module, x: Tensor) -> None:
        if gangline.rank() == 0:
            copies = [copy.deepcopy(model), torch.load(_saved(model), weights_only=False)]
            outputs = [one.train()(x) for one in copies]
            plain = build(job)
            plain.load_state_dict(model.state_dict())
            for output in outputs:
                torch.testing.assert_close(output, plain(x), rtol=0, atol=0)

    one_loop(job, model, each)
    return {"classes": [type(module).__name__ for module in model.modules()]}


def _saved(model: nn.Module) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return file


def evaluation_is_local(job: Synced) -> list[Tensor]:
    """In eval() one worker alone runs the model in the middle of a step."""
    model = build(job)

    def each(model: nn.Module, x: Tensor) -> Tensor:
        model.eval()
        output = model(x[:1]) if gangline.rank() == 0 else torch.zeros(0)
        model.train()
        return output.detach()

    return one_loop(job, model, each)


def outside_of_steps_is_local(job: Synced) -> dict[str, Tensor]:
    """Between the epochs one worker alone runs the model in training mode."""
    model, optimizer, loader = prepared(job, build(job))
    for _ in range(2):
        for x, y, weights, _ in loader:
            loss_of(job, model(x), y, weights).backward()
            optimizer.step()
            optimizer.zero_grad()
        if gangline.rank() == 0:
            model(data(job).tensors[0])
    return state_of(model)


def statistics_without_gradients(job: Synced) -> dict[str, Tensor]:
    """An epoch in which nothing is trained, to find the running statistics."""
    model, _, loader = prepared(job, build(job))
    with torch.no_grad():
        for x, *_ in loader:
            model(x)
    return state_of(model)


def closed(job: Synced) -> dict[str, Any]:
    """After the job the layers do what torch's do, each worker on its own."""
    before = nn.modules.batchnorm._BatchNorm.forward, nn.SyncBatchNorm.forward
    model = build(job)
    one_loop(job, model, lambda model, x: None)
    during = nn.modules.batchnorm._BatchNorm.forward, nn.SyncBatchNorm.forward
    rank = gangline.rank()
    api.shutdown()
    after = nn.modules.batchnorm._BatchNorm.forward, nn.SyncBatchNorm.forward
    if rank == 0:
        model(data(job).tensors[0])
    return {"is_wrapped": before[0] is not during[0], "is_restored": before == after}


def compiled(job: Synced) -> list[Update]:
    """The loop with a compiled model, whose layers break the graph."""
    model = build(job)
    model(data(job).tensors[0])  # as it is traced here, nothing is exchanged
    model.load_state_dict(build(job).state_dict())
    fast = torch.compile(model, backend="eager")
    fast(data(job).tensors[0])
    model.load_state_dict(build(job).state_dict())
    model, optimizer, loader = prepared(job, model)
    updates = []
    for x, y, weights, ids in loader:
        loss_of(job, fast(x), y, weights).backward()
        gradients = gradients_of(model)
        optimizer.step()
        optimizer.zero_grad()
        updates.append(Update((tuple(ids.tolist()),), gradients, state_of(model)))
    return updates


def one_is_slow(job: Synced, sleep_s: float) -> None:
    """One worker takes long between two layers; the others wait for its statistics."""
    model, optimizer, loader = prepared(job, build(job))

    def dawdle(*args: Any) -> None:
        time.sleep(sleep_s if gangline.rank() == 1 else 0.0)

    model[5].register_forward_hook(dawdle)
    for x, y, weights, _ in loader:
        loss_of(job, model(x), y, weights).backward()
        optimizer.step()
        optimizer.zero_grad()


def drift_by_a_layer(job: Synced) -> None:
    """One worker leaves out a layer."""
    model, optimizer, loader = prepared(job, build(job))
    for x, y, weights, _ in loader:
        inner = model[:2](x)
        hidden = inner if gangline.rank() == 1 else model[2](inner)
        loss_of(job, model[3:](hidden), y, weights).backward()
        optimizer.step()


def drift_by_a_pass(job: Synced) -> None:
    """One worker runs the last layer, which has as many channels, once more."""
    model, optimizer, loader = prepared(job, build(job))
    for x, y, weights, _ in loader:
        hidden = model[:7](x)
        if gangline.rank() == 1:
            hidden = model[6](hidden)
        loss_of(job, model[7:](hidden), y, weights).backward()
        optimizer.step()
