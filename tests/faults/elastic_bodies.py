# SPDX-License-Identifier: Apache-2.0
"""Training loops that faults are thrown at. Each runs as a worker of a job, or alone in plain torch.

What a loop returns describes the whole state at its end: it must not depend on who died on the way.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gangline
from gangline.eventlog import read_run
from gangline.spec.errors import ExchangeAborted
from gangline.spec.event import Decision, FaultFired
from gangline.spec.faults import Fault
from gangline.spec.launch import Launch

FEATURES, CLASSES = 6, 3


@dataclass(frozen=True)
class Setup:
    """What is trained."""

    loop: str = "plain"
    samples: int = 46
    batch: int = 8
    epochs: int = 2
    accumulate: int = 1
    num_workers: int = 0
    allocation: str = "equal"
    validate: bool = False
    order: str = "sequential"
    """Or `shuffled`, by torch's global numbers, or `generator`, by those of the loader."""
    slow_worker: int | None = None
    """A worker that needs longer for each sample than the others."""
    think_s: float = 0.0
    """What every step takes at least: more than what a busy machine makes of a small one."""
    broken: tuple[int, int] | None = None
    """A worker, and the step at which its samples are not numbers."""
    exaggerated: tuple[int, int, float] | None = None
    """A worker, the step from which on its gradient is wrong, and how many times too large it is."""
    evicting: tuple[int, ...] = ()
    """The workers that want those put out whose gradient is wrong."""
    wait: dict[int, str] = field(default_factory=dict)
    """Before the batch of a step, wait until the event log says something."""
    checkpoint: str | None = None
    """A folder for checkpoints, one after every other step."""
    breaks_off: tuple[int, str] | None = None
    """A worker whose wait for something of the coordinator is broken off, once."""
    hangs_in_order: tuple[int, int] | None = None
    """A worker that is stopped when the order of an epoch is agreed on, and which epoch."""
    dies: dict[int, str] = field(default_factory=dict)
    """Workers that are killed before the first view: `in prepare`, `shaking hands` or `when ready`."""

    @property
    def steps(self) -> int:
        return self.epochs * -(-self.samples // self.batch)


class Parts:
    """The objects of a loop, prepared unless it runs alone."""

    def __init__(self, setup: Setup, *, is_alone: bool) -> None:
        torch.manual_seed(5)
        torch.set_num_threads(1)
        torch.set_default_dtype(torch.float64)
        self.setup = setup
        self.is_alone = is_alone
        self.means: list[float] = []
        self.exaggeration = 1.0
        self.used: dict[tuple[int, int], list[int]] = {}
        """The samples of each step that were this worker's, by epoch and step."""
        if not is_alone:
            gangline.init(timeout_s=40)

    def loader(self) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(self.setup.samples, FEATURES, generator=generator)
        y = torch.randint(0, CLASSES, (self.setup.samples,), generator=generator)
        return DataLoader(
            TensorDataset(x, y, torch.arange(self.setup.samples)),
            batch_size=self.setup.batch,
            num_workers=self.setup.num_workers,
            shuffle=self.setup.order != "sequential",
            generator=torch.Generator().manual_seed(9) if self.setup.order == "generator" else None,
        )

    def prepare(self, *objects: Any, stateful: tuple[Any, ...] = ()) -> Any:
        if self.is_alone:
            return objects
        worker = gangline.runtime.api._job.session.place.worker
        die_before_the_first_view(self.setup.dies.get(worker))
        if self.setup.breaks_off is not None and worker == self.setup.breaks_off[0]:
            break_off_once(self.setup.breaks_off[1])
        if self.setup.exaggerated is not None:
            for model in objects:
                for parameter in model.parameters() if isinstance(model, nn.Module) else ():
                    parameter.register_hook(lambda gradient: gradient * self.exaggeration)
        prepared = gangline.prepare(
            *objects,
            global_batch=self.setup.batch,
            accumulate=self.setup.accumulate,
            allocation=self.setup.allocation,
            stateful=stateful,
            non_finite="evict" if worker in self.setup.evicting else None,
            checkpoint=self.setup.checkpoint,
            every=2,
        )
        if self.setup.hangs_in_order is not None and worker == self.setup.hangs_in_order[0]:
            hang_in_order(worker, epoch=self.setup.hangs_in_order[1])
        return prepared

    def epochs(self) -> Any:
        return range(self.setup.epochs) if self.is_alone else gangline.epochs(self.setup.epochs)

    def batches(self, loader: Any) -> Any:
        """The epoch's batches; waits where the setup says so, for an event of the run."""
        for x, y, index in loader:
            if not self.is_alone:
                handout = gangline.runtime.api._job.training.handout
                step = handout.step
                self.used[handout.epoch, step] = index[: handout.samples].tolist()
                if step in self.setup.wait:
                    wait_for(self.setup.wait[step])
                time.sleep(self.setup.think_s)
                if gangline.runtime.api._job.session.place.worker == self.setup.slow_worker:
                    time.sleep(0.008 * len(x))
                worker = gangline.runtime.api._job.session.place.worker
                if self.setup.broken == (worker, step):
                    x = x * float("nan")
                liar, first, factor = self.setup.exaggerated or (-1, 0, 1.0)
                self.exaggeration = factor if worker == liar and step >= first else 1.0
            yield x, y, index

    def is_update(self) -> bool:
        return self.is_alone or gangline.is_update()

    def validate(self, model: nn.Module) -> None:
        """The mean loss over an evaluation set, as people write it."""
        if not self.setup.validate:
            return
        loader = self.loader()
        total, count = 0.0, 0
        model.eval()
        with torch.no_grad():
            for x, y, _ in loader if self.is_alone else gangline.evaluate(loader):
                total += float(F.cross_entropy(model(x), y, reduction="sum"))
                count += len(y)
        model.train()
        value = total / max(count, 1)
        self.means.append(value if self.is_alone else gangline.mean(value, weight=count))


def wait_for(what: str) -> None:
    """Waits until the run's log has it: `joined N` (by decision) or a fault that fired."""
    launch = Launch.from_environment(os.environ)
    assert launch is not None
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for event in read_run(Path(launch.run_dir), notes=[]):
            if isinstance(event, Decision) and what in event.reason:
                return
            if isinstance(event, FaultFired) and what == f"{event.fault} {event.worker}":
                return
        time.sleep(0.02)
    raise AssertionError(f"waited in vain for {what}")


def break_off_once(what: str) -> None:
    """The first wait for this is broken off, as if the group were lost."""
    client = gangline.runtime.api._job.session.client
    wait_post, waited = client.wait_post, []

    def wait(find: Any, name: str) -> Any:
        if name == what and not waited:
            waited.append(name)
            time.sleep(0.1)
            raise ExchangeAborted("broken off by a test")
        return wait_post(find, name)

    client.wait_post = wait


def hang_in_order(worker: int, *, epoch: int) -> None:
    """Has this process stopped, for longer than others have patience, when an order is agreed on."""
    training = gangline.runtime.api._job.training
    agree = training.agree_on_order
    fault = Fault(worker=worker, kind="hang", step=0, where="call", for_s=2.8)

    def hang_and_agree(exchange: Any, key: tuple[str, int]) -> Any:
        if key == ("order", epoch):
            training.agree_on_order = agree  # once: it asks again when it is back
            training._faults._happen(fault)
        return agree(exchange, key)

    training.agree_on_order = hang_and_agree


def die_before_the_first_view(where: str | None) -> None:
    """Sees to it that this process is killed at a place that no fault plan reaches."""

    def die(*args: Any, **kwargs: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if where == "in prepare":
        die()
    elif where == "shaking hands":
        gangline.runtime.preparation.copy_tensors = die
    elif where == "when ready":
        gangline.runtime.preparation._first_view = die


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


class RunningMean(nn.Module):
    """A statistic that is linear in the samples: its average by share is that of the whole batch.

    The forward pass uses what the steps before have left, so that it does not depend on the share.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        before = self.mean
        if self.training:
            self.mean = 0.9 * before + 0.1 * x.detach().mean(0)
            self.count += 1
        return x - before


def plain(parts: Parts) -> dict[str, Any]:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        parts.validate(model)
    return describe([model], [optimizer])


def broken_off(parts: Parts) -> dict[str, Any]:
    """Leaves every epoch after its third batch."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for _ in parts.epochs():
        for number, (x, y, _) in enumerate(parts.batches(loader)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if number == 2:
                break
    return describe([model], [optimizer])


def several_units() -> nn.Sequential:
    """A model whose gradients travel in several units, the first while the rest is computed."""
    width = 724  # of float64: one layer fills a unit
    hidden = [nn.Linear(width, width) for _ in range(3)]
    return nn.Sequential(nn.Linear(FEATURES, width), *hidden, nn.Linear(width, CLASSES))


def wide(parts: Parts) -> dict[str, Any]:
    model = several_units()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return describe([model], [optimizer])


def stateful(parts: Parts) -> dict[str, Any]:
    """AdamW, clipping, a scheduler per step, a GradScaler, and statistics in buffers."""
    # Each part of an accumulation window moves a statistic, so it is not that of the whole batch.
    statistics = RunningMean() if parts.setup.accumulate == 1 else nn.Identity()
    model = nn.Sequential(statistics, *mlp())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=80)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
    model, optimizer, loader = parts.prepare(
        model, optimizer, parts.loader(), stateful=(schedule, scaler)
    )
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            if parts.is_update():
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
                schedule.step()
                optimizer.zero_grad()
        parts.validate(model)
    return {
        **describe([model], [optimizer]),
        "scale": torch.tensor(scaler.get_scale()),
        "schedule": torch.tensor(schedule.last_epoch),
    }


def normalised(parts: Parts) -> dict[str, Any]:
    """BatchNorm: each worker normalises by its own samples, but the statistics stay equal."""
    model = nn.Sequential(
        nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return describe([model], [optimizer])


def gan(parts: Parts) -> dict[str, Any]:
    generator, discriminator = nn.Linear(2, FEATURES), mlp()
    opt_g = torch.optim.Adam(generator.parameters(), lr=0.02)
    opt_d = torch.optim.Adam(discriminator.parameters(), lr=0.02)
    *_, loader = parts.prepare(generator, discriminator, opt_g, opt_d, parts.loader())
    for _ in parts.epochs():
        for x, _, _ in parts.batches(loader):
            opt_d.zero_grad()
            fake = generator(x[:, :2])
            real = discriminator(x)[:, 0]
            (F.softplus(-real) + F.softplus(discriminator(fake.detach())[:, 0])).mean().backward()
            opt_d.step()
            opt_g.zero_grad()
            F.softplus(-discriminator(fake)[:, 0]).mean().backward()
            opt_g.step()
    return describe([generator, discriminator], [opt_g, opt_d])


def describe(models: list[nn.Module], optimizers: list[torch.optim.Optimizer]) -> dict[str, Any]:
    """Parameters, buffers and optimizer state, by name."""
    state: dict[str, Any] = {}
    for number, model in enumerate(models):
        state |= {f"{number}.{name}": value for name, value in model.state_dict().items()}
    for number, optimizer in enumerate(optimizers):
        for index, values in optimizer.state_dict()["state"].items():
            state |= {f"opt{number}.{index}.{k}": v for k, v in values.items() if v is not None}
        state[f"opt{number}.lr"] = torch.tensor(optimizer.param_groups[0]["lr"])
    return {name: torch.as_tensor(value).detach().clone() for name, value in state.items()}


def run_body(setup: Setup, *, is_alone: bool) -> dict[str, Any]:
    """Runs the setup's loop; what it ended with."""
    before = torch.get_default_dtype()
    parts = Parts(setup, is_alone=is_alone)
    try:
        state = globals()[setup.loop](parts)
    finally:
        torch.set_default_dtype(before)
    return {"state": state, "means": parts.means, "used": parts.used}
