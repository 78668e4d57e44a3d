# SPDX-License-Identifier: Apache-2.0
"""Loops that train by parameter servers, and note what each step was computed from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from elastic_bodies import CLASSES, FEATURES, describe, mlp
from torch import Tensor, nn

import gangline

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_bodies import Parts


def note_read(parts: Parts) -> None:
    """Which updates of each shard the present step's parameters have, by where its samples end."""
    if parts.is_alone:
        return
    gear = gangline.worker.api._job.training.gear
    updater, handout = gear.mode.strategy.updater, gear.handout
    if updater is None or handout is None:
        return
    if not updater.is_leader:
        return  # it is given what the leader has pulled
    client = updater._hosting.client
    team = gear.mode.strategy.number
    parts.found_after["indices"] = client._indices
    rates = [group["lr"] for group in updater._optimizer.param_groups]
    key, found = (team, handout.epoch, handout.window_stop), (client.pulled_at, rates)
    parts.found_after[key] = found
    if parts.setup.folder:  # for those who are killed
        with (Path(parts.setup.folder) / "reads.txt").open("a") as file:
            file.write(f"{('indices', client._indices)!r}\n{(key, found)!r}\n")


class Uneven(nn.Module):
    """Some parameters are frozen, some have no gradient in some batches, and types are mixed."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()
        self.body[0].bias.requires_grad_(False)
        self.rare = nn.Linear(FEATURES, CLASSES)
        self.shift = nn.Parameter(torch.full((CLASSES,), 0.1, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x) + self.shift
        return out + self.rare(x) if float(x[0, 0]) > 0 else out


def uneven_sgd(model: Uneven) -> torch.optim.SGD:
    """Two groups; with momentum a gradient of zero is not the same as none."""
    groups = [{"params": model.body.parameters(), "lr": 0.1}]
    groups += [{"params": [*model.rare.parameters(), model.shift], "lr": 0.02}]
    return torch.optim.SGD(groups, momentum=0.9, weight_decay=0.01)


class Words(nn.Module):
    """A table of which each batch uses some rows, and has a sparse gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(60, CLASSES, mode="sum", sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.table((x[:, :2] * 19).long().abs() % 60)


class Mixed(nn.Module):
    """A table, and parameters whose gradients are whole; one optimizer for both."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(400, 4, sparse=True)
        self.head = nn.Linear(8 + FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        words = self.table((x[:, :2] * 100).long().abs() % 400)
        return self.head(torch.cat([words.flatten(1), x], dim=1))


TABLES = {
    "rows_sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.2),
    "rows_adam": lambda model: torch.optim.SparseAdam(model.parameters(), lr=0.02),
    "rows_adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1),
}


MIXED = {
    "mixed_sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.2),
    "mixed_adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1),
    "mixed_adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.02),
}


def mixed_sgd(parts: Parts) -> dict[str, Any]:
    model = Mixed()
    return _train(parts, model, MIXED["mixed_sgd"](model))


def mixed_adagrad(parts: Parts) -> dict[str, Any]:
    model = Mixed()
    return _train(parts, model, MIXED["mixed_adagrad"](model))


def mixed_adam(parts: Parts) -> dict[str, Any]:
    model = Mixed()
    return _train(parts, model, MIXED["mixed_adam"](model))


class Aside(Mixed):
    """Reads its table without its layer."""

    def forward(self, x: Tensor) -> Tensor:
        places = (x[:, :2] * 100).long().abs() % 400
        words = F.embedding(places, self.table.weight, sparse=True)
        return self.head(torch.cat([words.flatten(1), x], dim=1))


def aside_sgd(parts: Parts) -> dict[str, Any]:
    model = Aside()
    return _train(parts, model, MIXED["mixed_sgd"](model))


def looking_sgd(parts: Parts) -> dict[str, Any]:
    """Counts, within and after each epoch, in how many rows the table differs from what others have."""
    model = Mixed()
    model, optimizer, loader = parts.prepare(model, MIXED["mixed_sgd"](model), parts.loader())
    for epoch in parts.epochs():
        for x, y, _ in parts.batches(loader):
            note_read(parts)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        parts.found_after["table", epoch] = model.table.weight.detach().clone()
    return describe([model], [optimizer])


def rows_sgd(parts: Parts) -> dict[str, Any]:
    model = Words()
    return _train(parts, model, TABLES["rows_sgd"](model))


def rows_adam(parts: Parts) -> dict[str, Any]:
    model = Words()
    return _train(parts, model, TABLES["rows_adam"](model))


def rows_adagrad(parts: Parts) -> dict[str, Any]:
    model = Words()
    return _train(parts, model, TABLES["rows_adagrad"](model))


def served_uneven(parts: Parts) -> dict[str, Any]:
    """With a schedule that goes by the step, and a closure."""
    model = Uneven()
    optimizer = uneven_sgd(model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader(), stateful=(schedule,))
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            note_read(parts)

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
            schedule.step()
    return describe([model], [optimizer])


def served_sgd(parts: Parts) -> dict[str, Any]:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01)
    return _train(parts, model, optimizer)


def served_adam(parts: Parts) -> dict[str, Any]:
    model = mlp()
    return _train(parts, model, torch.optim.Adam(model.parameters(), lr=0.02))


def _train(parts: Parts, model: Any, optimizer: Any) -> dict[str, Any]:
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            note_read(parts)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return describe([model], [optimizer])


def served_in_forward(parts: Parts) -> dict[str, Any]:
    """Parameters come while the forward pass uses them; the loop looks at one directly, too."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    coming = 0
    for _ in parts.epochs():
        for number, (x, y, _) in enumerate(parts.batches(loader)):
            coming += type(model[0].weight) is not nn.Parameter
            before = model[2].weight.detach().clone() if number % 3 == 0 else None
            loss = F.cross_entropy(model(x), y)
            assert before is None or torch.equal(before, model[2].weight)
            optimizer.zero_grad()
            loss.backward()
            _finish_pull(parts)
            note_read(parts)
            optimizer.step()
    parts.found_after["coming"] = coming
    return describe([model], [optimizer])


def mixed_in_forward(parts: Parts) -> dict[str, Any]:
    """A table comes while the forward pass uses it, too."""
    model = Mixed()
    optimizer = MIXED["mixed_sgd"](model)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            _finish_pull(parts)
            note_read(parts)
            optimizer.step()
    return describe([model], [optimizer])


def _finish_pull(parts: Parts) -> None:
    """What was pulled is known when all of it is."""
    if not parts.is_alone:
        updater = gangline.worker.api._job.training.gear.mode.strategy.updater
        if updater is not None and updater._under_way is not None:
            updater._under_way.exception()


def clip(parameters: Any) -> None:
    """As old scripts do: torch does not count what is changed by way of `.data`."""
    for parameter in parameters:
        if parameter.grad is not None:  # it is there when the window ends
            parameter.grad.data.clamp_(-0.01, 0.02)


def served_clipped(parts: Parts) -> dict[str, Any]:
    """Gradients are changed between the backward pass and the step."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            note_read(parts)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            clip(model.parameters())
            optimizer.step()
    return describe([model], [optimizer])


def served_clamped(parts: Parts) -> dict[str, Any]:
    """The loop itself changes parameters after the step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            with torch.no_grad():
                model[2].weight.clamp_(-0.1, 0.1)
    return describe([model], [optimizer])


def served_not_finite(parts: Parts) -> dict[str, Any]:
    """One gradient of worker 1 is not a number."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for epoch in parts.epochs():
        for number, (x, y, _) in enumerate(parts.batches(loader)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if gangline.rank() == 1 and (epoch, number) == (1, 0):
                model[2].weight.grad.fill_(float("nan"))
            optimizer.step()
    return describe([model], [optimizer])


def served_reset(parts: Parts) -> dict[str, Any]:
    """The loop puts other weights in between epochs: at first for a look at them, then for good."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for epoch in parts.epochs():
        for x, y, _ in parts.batches(loader):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        own = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict({name: value / 2 for name, value in own.items()})
        if epoch == 0:
            model.load_state_dict(own)
        sys.stdout.write(f"epoch {epoch} is over\n")
        sys.stdout.flush()
    return describe([model], [optimizer])


def served_two_losses(parts: Parts) -> dict[str, Any]:
    """The gradient is whole after the second pass only."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            note_read(parts)
            optimizer.zero_grad()
            (F.cross_entropy(model(x), y) * 0.25).backward()
            (F.cross_entropy(model(x), y) * 0.75).backward()
            optimizer.step()
    return describe([model], [optimizer])


WIDE = 150_000


def wide() -> nn.Module:
    """Of several units: the first is pushed long before the last is there."""
    return nn.Sequential(
        nn.Linear(FEATURES, WIDE),
        nn.Tanh(),
        nn.Linear(WIDE, FEATURES),
        nn.Linear(FEATURES, WIDE),
        nn.Tanh(),
        nn.Linear(WIDE, CLASSES),
    )


def served_wide(parts: Parts) -> dict[str, Any]:
    model = wide()
    return _train(parts, model, torch.optim.SGD(model.parameters(), lr=0.001))


def resumed_adam(parts: Parts) -> dict[str, Any]:
    """Goes on from the newest checkpoint, if there is one."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader(), resume=True)
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return describe([model], [optimizer])


def _scaled(parts: Parts, *, overflows: Callable[[int], bool], **options: Any) -> dict[str, Any]:
    """By a GradScaler whose scale is so high that a wrong unscaling cannot be missed."""
    model = mlp()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01, **options
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader(), stateful=(scaler,))
    skipped = 0
    for _ in parts.epochs():
        for x, y, index in parts.batches(loader):
            note_read(parts)
            optimizer.zero_grad()
            is_bad = any(overflows(int(one)) for one in index)
            factor = float("inf") if is_bad else 1.0
            scaler.scale(F.cross_entropy(model(x), y) * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            skipped += len(index) if is_bad else 0
    parts.found_after |= {"scale": scaler.get_scale(), "skipped": skipped}
    return describe([model], [optimizer])


def served_scaled(parts: Parts) -> dict[str, Any]:
    return _scaled(parts, overflows=lambda _: False)


def served_fused(parts: Parts) -> dict[str, Any]:
    return _scaled(parts, overflows=lambda _: False, fused=True)


def served_overflow(parts: Parts) -> dict[str, Any]:
    """Some steps are skipped."""
    return _scaled(parts, overflows=lambda one: one % 37 == 0)


def served_fused_overflow(parts: Parts) -> dict[str, Any]:
    return _scaled(parts, overflows=lambda one: one % 37 == 0, fused=True)


def served_all_overflow(parts: Parts) -> dict[str, Any]:
    return _scaled(parts, overflows=lambda _: True)


def served_normalised(parts: Parts) -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES))
    return _train(parts, model, torch.optim.SGD(model.parameters(), lr=0.1))


def half_owned(parts: Parts) -> dict[str, Any]:
    """Only the second worker says that the data is its own."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    whose = "worker" if gangline.rank() == 1 else "shared"
    try:
        gangline.prepare(model, optimizer, parts.loader(), data=whose, sync="bsp")
    except gangline.GanglineError as error:
        parts.found_after = {"error": f"{type(error).__name__}: {error}"}
    return {}
