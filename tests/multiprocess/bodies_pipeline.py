# SPDX-License-Identifier: Apache-2.0
"""What workers run in the tests of pipelines, and the same in one process of plain torch."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gangline
from gangline.collectives.protocol import part_bounds
from gangline.pipelining.meeting import Planner
from gangline.pipelining.standing import Decided
from gangline.planning.pipelines.timeline import StageTime, play
from gangline.spec.pipelines import Layout, Pipeline, Stage

SAMPLES, BATCH, EPOCHS, WIDTH = 22, 8, 2, 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.two(F.relu(self.one(x)))


class Net(nn.Module):
    """Traced, with shortcuts; a layer without gradient, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.head = nn.Linear(WIDTH, 3)
        self.blocks[1].one.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x), inplace=True)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def sequential() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(4, WIDTH), nn.ReLU(inplace=True)]
    for _ in range(4):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 3))


def normalised() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH),
        nn.Dropout(0.3), nn.Linear(WIDTH, 3),
    )  # fmt: skip


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return sequential()


MODELS = {"traced": Net, "sequential": sequential, "normalised": normalised, "meta": on_meta}


def made(kind: str) -> tuple[nn.Module, torch.optim.Optimizer, TensorDataset]:
    torch.manual_seed(3)
    model = MODELS[kind]()
    optimizer = torch.optim.Adam(
        [p for p in model.parameters() if p.requires_grad], lr=0.01, weight_decay=0.1
    )
    x = torch.randn(SAMPLES, 4)
    return model, optimizer, TensorDataset(x, torch.randint(0, 3, (SAMPLES,)))


def alone(kind: str, *, shuffle: bool = True, reduction: str = "mean") -> dict[str, Any]:
    """Plain torch, with the order of samples that pipelines have."""
    model, optimizer, data = made(kind)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    losses = []
    for epoch in range(EPOCHS):
        generator = torch.Generator().manual_seed(epoch)
        order = torch.randperm(SAMPLES, generator=generator) if shuffle else torch.arange(SAMPLES)
        for index in order.split(BATCH):
            optimizer.zero_grad()
            x, y = data[index]
            loss = F.cross_entropy(model(x), y, reduction=reduction)
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
    return {"losses": losses, "state": model.state_dict()}


def total_loss(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="sum")


def train(kind: str, options: dict[str, Any], memory: list[float] | None = None) -> dict[str, Any]:
    """The same by a pipeline."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    try:
        gangline.init()
        return train_loop(kind, options, memory)
    finally:
        torch.set_default_dtype(torch.float32)


Cuts = list[tuple[list[tuple[int, int]], int, int]]


def train_as(kind: str, cuts: Cuts) -> dict[str, Any]:
    """As `train`, in this layout: the stages of each pipeline as workers and how many layers each has,
    with its share and its micro-batches."""
    pipelines = []
    for counts, share, number in cuts:
        ends = list(accumulate(count for _, count in counts))
        stages = [
            Stage(machine=f"w{worker}", start=end - count, stop=end)
            for (worker, count), end in zip(counts, ends, strict=True)
        ]
        pipelines.append(Pipeline(stages=tuple(stages), share=share, micro_batches=number))
    decided = Decided(layout=Layout(pipelines=tuple(pipelines)), recompute=[False] * len(cuts))
    before, Planner.decide = Planner.decide, lambda self, standings: decided  # type: ignore[method-assign]
    try:
        return train(kind, {})
    finally:
        Planner.decide = before  # type: ignore[method-assign]


def train_loop(
    kind: str, options: dict[str, Any], memory: list[float] | None = None
) -> dict[str, Any]:
    """What a script does after `init`; `memory` is what each worker may use."""
    model, optimizer, data = made(kind)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    if memory is not None:
        options = {**options, "memory": memory[gangline.rank()]}
    loss = total_loss if options.get("reduction") == "sum" else F.cross_entropy
    pipe = gangline.pipeline(model, optimizer, loader, loss=loss, **options)
    losses = []
    for _ in range(EPOCHS):
        for value in pipe:
            losses.append(value)
            scheduler.step()
    state = pipe.state_dict(everywhere=True)
    layout = pipe.layout
    held = sorted(pipe._gear.holdings.held)
    pipe.close()
    return {
        "losses": losses,
        "state": state,
        "held": held,
        "stages": [
            [(one.machine, one.start, one.stop) for one in some.stages] for some in layout.pipelines
        ],
        "shares": [one.share for one in layout.pipelines],
        "micro_batches": [one.micro_batches for one in layout.pipelines],
        "copies": [(one.machine, one.start, one.stop) for one in layout.copies],
    }


def stashed(bounds: list[int], micro_batches: int) -> dict[str, Any]:
    """PipeDream with weight stashing in one process, by its definition: stages of "sequential" that
    begin at these layers each do what the schedule says, as early as it can be done."""
    model, _, data = made("sequential")
    layers = [nn.Sequential(*model[2 * i : 2 * i + 2]) for i in range(6)]
    stages = [nn.Sequential(*layers[a:b]) for a, b in zip(bounds, [*bounds[1:], None], strict=True)]
    optimizers = [
        torch.optim.Adam(stage.parameters(), lr=0.01, weight_decay=0.1) for stage in stages
    ]
    rate, losses = 0.01, []
    times = [StageTime(forward_s=1.0, backward_s=1.0)] * len(stages)
    for epoch in range(EPOCHS):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
        for index in order.split(BATCH):
            for one in optimizers:
                one.param_groups[0]["lr"] = rate
            rate *= 0.9
            parts = [index[a:b] for a, b in pairwise(part_bounds(len(index), micro_batches))]
            sent: dict[Any, Tensor] = {}
            kept: dict[Any, tuple[Tensor, Tensor, dict[str, Tensor]]] = {}
            total = 0.0
            for done in play("pipedream", times, micro_batches=len(parts)):
                stage, (kind, number) = done.stage, done.task
                if kind == "forward":
                    x = sent[kind, stage, number] if stage else data[parts[number]][0]
                    leaf = x.detach().requires_grad_()
                    values = {
                        n: p.detach().clone().requires_grad_()
                        for n, p in stages[stage].named_parameters()
                    }
                    out = torch.func.functional_call(stages[stage], values, (leaf,))
                    if stage == len(stages) - 1:
                        out = F.cross_entropy(out, data[parts[number]][1])
                        total += out.item() * len(parts[number]) / len(index)
                    kept[stage, number] = (leaf, out, values)
                    sent[kind, stage + 1, number] = out
                elif kind == "backward":
                    leaf, out, _ = kept[stage, number]
                    torch.autograd.backward(out, sent.get((kind, stage, number)))
                    assert leaf.grad is not None
                    sent[kind, stage - 1, number] = leaf.grad
                else:
                    for name, parameter in stages[stage].named_parameters():
                        parameter.grad = kept[stage, number][2][name].grad
                    optimizers[stage].step()
            losses.append(total)
    return {"losses": losses, "state": model.state_dict()}
