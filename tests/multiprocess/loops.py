# SPDX-License-Identifier: Apache-2.0
"""Training loops of many kinds, each written once and run two ways.

`run_loop(name, …)` with a `setting` runs the loop as a worker of a job; without one it is the plain
torch script that the job must agree with. A loop returns the parameters after every update.
"""

from __future__ import annotations

import copy
import io
import itertools
import random
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

import gangline

FEATURES, CLASSES = 6, 3


@dataclass(frozen=True)
class Setting:
    """How the workers cut the job."""

    shares: tuple[float, ...]
    """One per worker; where there is an allocation, only their number counts."""
    accumulate: int = 1
    allocation: str | None = None
    jitter_s: float = 0.0
    """So long at most a sample takes to load: at random, so that workers overtake each other."""


@dataclass(frozen=True)
class Problem:
    """What is trained, the same in both ways."""

    samples: int = 23
    batch: int = 8
    epochs: int = 2
    drop_last: bool = False
    num_workers: int = 0
    seed: int = 0


class Job:
    """Builds the loop's objects, and prepares them where there is a setting."""

    def __init__(self, problem: Problem, setting: Setting | None) -> None:
        torch.manual_seed(problem.seed)
        self.problem = problem
        self.setting = setting
        self.history: list[torch.Tensor] = []
        if setting is not None:
            gangline.init()

    def prepare(self, *objects: Any, **options: Any) -> list[Any]:
        if self.setting is None:
            return list(objects)
        return list(
            gangline.prepare(
                *objects,
                global_batch=self.problem.batch,
                shares=self.setting.shares if self.setting.allocation is None else None,
                allocation=self.setting.allocation,
                accumulate=self.setting.accumulate,
                **options,
            )
        )

    def loader(self, data: TensorDataset | None = None, **options: Any) -> DataLoader[Any]:
        data = vectors(self.problem) if data is None else data
        if self.setting is not None and self.setting.jitter_s:
            data = Late(data, self.setting.jitter_s)
        return DataLoader(
            data,
            batch_size=self.problem.batch,
            drop_last=self.problem.drop_last,
            num_workers=self.problem.num_workers,
            **options,
        )

    def note(self, *models: nn.Module) -> None:
        parameters = [p.detach().double().flatten() for m in models for p in m.parameters()]
        self.history.append(torch.cat(parameters))


class Late(Dataset[Any]):
    """Samples that take their time, different ones on each worker."""

    def __init__(self, data: TensorDataset, jitter_s: float) -> None:
        self._data = data
        self._jitter_s = jitter_s
        self._random = random.Random(gangline.rank())

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, place: int) -> Any:
        time.sleep(self._random.uniform(0, self._jitter_s))
        return self._data[place]


def vectors(problem: Problem) -> TensorDataset:
    generator = torch.Generator().manual_seed(problem.seed + 1)
    x = torch.randn(problem.samples, FEATURES, generator=generator, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (problem.samples,), generator=generator)
    return TensorDataset(x, y)


def images(problem: Problem) -> TensorDataset:
    generator = torch.Generator().manual_seed(problem.seed + 1)
    x = torch.randn(problem.samples, 3, 6, 6, generator=generator, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (problem.samples,), generator=generator)
    return TensorDataset(x, y)


def mlp(*, width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, CLASSES))


def convnet() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Conv2d(4, 8, 3, stride=2),
        nn.Flatten(),
        nn.Linear(8 * 4, CLASSES),
    )


def simple(job: Job, model: nn.Module, loader: DataLoader[Any], *, to_none: bool = True) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01)
    model, optimizer, loader = job.prepare(model, optimizer, loader)
    for _ in range(job.problem.epochs):
        for x, y in loader:
            optimizer.zero_grad(set_to_none=to_none)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if gangline.is_update():
                job.note(model)


def loop_mlp(job: Job) -> None:
    simple(job, mlp(), job.loader())


def loop_zeroed_gradients(job: Job) -> None:
    simple(job, mlp(), job.loader(), to_none=False)


def loop_convnet(job: Job) -> None:
    simple(job, convnet(), job.loader(images(job.problem)))


def loop_attention(job: Job) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(1, 8)
            self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.head = nn.Linear(8, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.block(self.embed(x.unsqueeze(-1))).mean(1))

    simple(job, Attention(), job.loader())


def loop_recurrent(job: Job) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRU(1, 5, batch_first=True)
            self.head = nn.Linear(5, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.cell(x.unsqueeze(-1))[0][:, -1])

    simple(job, Recurrent(), job.loader())


def _swap(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])


def loop_loader_workers(job: Job) -> None:
    simple(job, mlp(), job.loader(collate_fn=_swap))


def loop_clipping_and_schedule(job: Job) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=50)
    model, optimizer, loader = job.prepare(model, optimizer, job.loader(), stateful=[schedule])
    for _ in range(job.problem.epochs):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            if gangline.is_update():
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                job.note(model)


def loop_two_losses(job: Job) -> None:
    trunk, first, second = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES), nn.Linear(8, 1)
    model = nn.ModuleList([trunk, first, second])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = job.prepare(model, optimizer, job.loader())
    for _ in range(job.problem.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            hidden = torch.tanh(trunk(x))
            F.cross_entropy(first(hidden), y).backward(retain_graph=True)
            second(hidden).square().mean().backward()
            optimizer.step()
            if gangline.is_update():
                job.note(model)


def loop_never_zeroed(job: Job) -> None:
    """The gradients of all steps add up, as torch does it for who never calls zero_grad."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    model, optimizer, loader = job.prepare(model, optimizer, job.loader())
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        if gangline.is_update():
            optimizer.step()
            job.note(model)


def loop_gan(job: Job) -> None:
    """A discriminator that steps every time, a generator that steps every second time."""
    generator, discriminator = nn.Linear(2, FEATURES), mlp()
    opt_g = torch.optim.Adam(generator.parameters(), lr=0.02)
    opt_d = torch.optim.Adam(discriminator.parameters(), lr=0.02)
    _, _, _, _, loader = job.prepare(generator, discriminator, opt_g, opt_d, job.loader())
    count = 0
    for _ in range(job.problem.epochs):
        for x, _ in loader:
            count += 1
            opt_d.zero_grad()
            fake = generator(x[:, :2])
            real = discriminator(x)[:, 0]
            (F.softplus(-real) + F.softplus(discriminator(fake.detach())[:, 0])).mean().backward()
            opt_d.step()
            if count % 2 == 0:
                opt_g.zero_grad()
                F.softplus(-discriminator(fake)[:, 0]).mean().backward()
                opt_g.step()
            job.note(generator, discriminator)


def loop_gradient_penalty(job: Job) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = job.prepare(model, optimizer, job.loader())
    for x, _ in loader:
        optimizer.zero_grad()
        x = x.detach().requires_grad_(True)
        score = model(x)[:, 0]
        (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        (score + (slope.norm(dim=1) - 1).square()).mean().backward()
        optimizer.step()
        if gangline.is_update():
            job.note(model)


def loop_unused_and_unfrozen(job: Job) -> None:
    """One layer is never used, one depends on the data, one is frozen for the first epoch."""
    used, frozen, sometimes = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)
    model = nn.ModuleList([used, frozen, sometimes, nn.Linear(4, 4)])
    frozen.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    model, optimizer, loader = job.prepare(model, optimizer, job.loader())
    for epoch in range(job.problem.epochs):
        frozen.requires_grad_(epoch > 0)
        for x, y in loader:
            optimizer.zero_grad()
            hidden = torch.tanh(used(x))
            loss = F.cross_entropy(frozen(hidden), y)
            if bool((y == 0).any()):
                chosen = (y == 0).double()
                loss = loss + (sometimes(hidden).square().sum(1) * chosen).mean()
            loss.backward()
            optimizer.step()
            if gangline.is_update():
                job.note(model)


def loop_channels_last_fused(job: Job) -> None:
    model = convnet().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, fused=True)
    data = images(job.problem)
    model, optimizer, loader = job.prepare(model, optimizer, job.loader(data))
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x.to(memory_format=torch.channels_last)), y).backward()
        optimizer.step()
        if gangline.is_update():
            job.note(model)


def loop_checkpointed(job: Job) -> None:
    model = nn.Sequential(mlp(), nn.Tanh(), nn.Linear(CLASSES, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = job.prepare(model, optimizer, job.loader())
    for x, y in loader:
        optimizer.zero_grad()
        hidden = checkpoint(model[0], x, use_reentrant=False)
        F.cross_entropy(model[2](model[1](hidden)), y).backward()
        optimizer.step()
        if gangline.is_update():
            job.note(model)


def loop_compiled(job: Job) -> None:
    simple(job, torch.compile(mlp(), backend="aot_eager"), job.loader())  # type: ignore[arg-type]


def loop_sum_reduced(job: Job) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    model, optimizer, loader = job.prepare(model, optimizer, job.loader(), reduction="sum")
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y, reduction="sum").backward()
        optimizer.step()
        if gangline.is_update():
            job.note(model)


def token_count(batch: list[torch.Tensor]) -> float:
    return float((batch[1] != 0).sum())


def loop_token_weights(job: Job) -> None:
    """Samples of class 0 count nothing; the loss is the mean over those that count."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = job.prepare(model, optimizer, job.loader(), weight=token_count)
    for x, y in loader:
        optimizer.zero_grad()
        counts = (y != 0).double()
        losses = F.cross_entropy(model(x), y, reduction="none")
        ((losses * counts).sum() / counts.sum().clamp(min=1)).backward()
        optimizer.step()
        if gangline.is_update():
            job.note(model)


def loop_own_window(job: Job) -> None:
    """Somebody counts their own accumulation window, with no_sync."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = job.prepare(model, optimizer, job.loader())
    for index, (x, y) in enumerate(loader):
        if index % 2 == 0:
            optimizer.zero_grad()
            with gangline.no_sync():
                (F.cross_entropy(model(x), y) / 2).backward()
        else:
            (F.cross_entropy(model(x), y) / 2).backward()
            optimizer.step()
            job.note(model)


def loop_scaled_half_precision(job: Job) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    model, optimizer, loader = job.prepare(model, optimizer, job.loader(), stateful=[scaler])
    for x, y in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if gangline.is_update():
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            job.note(model)


def loop_copies(job: Job) -> None:
    """An EMA copy, deepcopy and torch.save in the middle of training."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = job.prepare(model, optimizer, job.loader())
    average = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda old, new, _: (old + new) / 2)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if gangline.is_update():
            average.update_parameters(model)
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            loaded = torch.load(file, weights_only=False)
            job.note(model, average, copy.deepcopy(model), loaded)


def update(job: Job, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """What loops do behind each backward pass."""
    if gangline.is_update():
        optimizer.step()
        optimizer.zero_grad()
        job.note(model)


def loop_fetches_before_backward(job: Job) -> None:
    """The next batch is fetched between forward and backward, over the ends of epochs."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    model, optimizer, loader = job.prepare(model, optimizer, job.loader())
    batches = endless(loader)
    x, y = next(batches)
    steps = job.problem.epochs * -(-job.problem.samples // job.problem.batch)
    for _ in range(steps) if job.setting is None else gangline.steps(steps):
        loss = F.cross_entropy(model(x), y)
        x, y = next(batches)
        loss.backward()
        update(job, model, optimizer)


def endless(loader: Any) -> Any:
    while True:
        yield from loader


class OneAhead:
    """Has the next batch ready before the present one is computed, as prefetchers to a GPU do."""

    def __init__(self, loader: Any, *, is_copied: bool) -> None:
        self._batches = iter(loader)
        self._is_copied = is_copied
        self._next = self._fetch()

    def _fetch(self) -> list[torch.Tensor] | None:
        batch = next(self._batches, None)
        return [tensor.clone() for tensor in batch] if batch and self._is_copied else batch

    def __iter__(self) -> Any:
        while (batch := self._next) is not None:
            self._next = self._fetch()
            yield batch


def one_ahead(job: Job, *, is_copied: bool) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    model, optimizer, loader = job.prepare(model, optimizer, job.loader())
    for _ in range(job.problem.epochs):
        for x, y in OneAhead(loader, is_copied=is_copied):
            F.cross_entropy(model(x), y).backward()
            update(job, model, optimizer)


def loop_one_ahead(job: Job) -> None:
    one_ahead(job, is_copied=False)


def loop_one_ahead_with_copies(job: Job) -> None:
    one_ahead(job, is_copied=True)


def loop_one_ahead_with_weights(job: Job) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = job.prepare(model, optimizer, job.loader(), weight=token_count)
    for x, y in OneAhead(loader, is_copied=False):
        counts = (y != 0).double()
        losses = F.cross_entropy(model(x), y, reduction="none")
        ((losses * counts).sum() / counts.sum().clamp(min=1)).backward()
        update(job, model, optimizer)


def loop_evaluates_the_next_batch(job: Job) -> None:
    """The next batch is evaluated between the forward pass and the loss of the present one."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    model, optimizer, loader = job.prepare(model, optimizer, job.loader())
    for _ in range(job.problem.epochs):
        batches = iter(loader)
        following = next(batches, None)
        while following is not None:
            (x, y), following = following, next(batches, None)
            scores = model(x)
            if following is not None:
                with torch.no_grad():
                    model(following[0])
            F.cross_entropy(scores, y).backward()
            update(job, model, optimizer)


def loop_window_first(job: Job) -> None:
    """All batches of an accumulation window are fetched before the first is computed."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    model, optimizer, loader = job.prepare(model, optimizer, job.loader())
    size = 1 if job.setting is None else job.setting.accumulate
    for _ in range(job.problem.epochs):
        batches = iter(loader)
        while window := list(itertools.islice(batches, size)):
            for x, y in window:
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            job.note(model)


def loop_fetches_before_step(job: Job) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    model, optimizer, loader = job.prepare(model, optimizer, job.loader())
    for _ in range(job.problem.epochs):
        batches = iter(loader)
        batch = next(batches, None)
        while batch is not None:
            optimizer.zero_grad()
            F.cross_entropy(model(batch[0]), batch[1]).backward()
            is_update = gangline.is_update()
            batch = next(batches, None)
            optimizer.step()
            if is_update:
                job.note(model)


def loop_gan_one_ahead(job: Job) -> None:
    generator, discriminator = nn.Linear(2, FEATURES), mlp()
    opt_g = torch.optim.Adam(generator.parameters(), lr=0.02)
    opt_d = torch.optim.Adam(discriminator.parameters(), lr=0.02)
    *_, loader = job.prepare(generator, discriminator, opt_g, opt_d, job.loader())
    for x, _ in OneAhead(loader, is_copied=True):
        opt_d.zero_grad()
        fake = generator(x[:, :2])
        real = discriminator(x)[:, 0]
        (F.softplus(-real) + F.softplus(discriminator(fake.detach())[:, 0])).mean().backward()
        opt_d.step()
        opt_g.zero_grad()
        F.softplus(-discriminator(fake)[:, 0]).mean().backward()
        opt_g.step()
        job.note(generator, discriminator)


def loop_looks_and_skips(job: Job) -> None:
    """Looks at a batch beforehand, and leaves out every third one."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    model, optimizer, loader = job.prepare(model, optimizer, job.loader())
    assert len(next(iter(loader))) == 2
    for _ in range(job.problem.epochs):
        for number, (x, y) in enumerate(loader):
            if number // (1 if job.setting is None else job.setting.accumulate) % 3 == 1:
                continue
            F.cross_entropy(model(x), y).backward()
            update(job, model, optimizer)


def run_loop(name: str, problem: Problem, setting: Setting | None = None) -> torch.Tensor:
    """The parameters after every update of the loop `loop_<name>`."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        job = Job(problem, setting)
        globals()[f"loop_{name}"](job)
    finally:
        torch.set_default_dtype(before)
    return torch.stack(job.history)


LOOPS = sorted(name.removeprefix("loop_") for name in globals() if name.startswith("loop_"))
