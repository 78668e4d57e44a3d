# SPDX-License-Identifier: Apache-2.0
"""Training loops that faults are thrown at. Each runs as a worker of a job, or alone in plain torch.

What a loop returns describes the whole state at its end: it must not depend on who died on the way.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import gangline
from gangline.eventlog import read_run
from gangline.protocol.launch import Launch
from gangline.spec.errors import ExchangeAborted
from gangline.spec.event import Decision, FaultFired
from gangline.spec.faults import Fault

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
    """Or `shuffled`, by torch's global numbers, `generator`, by those of the loader, or `weighted`."""
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
    timeout_s: float = 40.0
    """How long an exchange may wait for another worker."""
    trap: tuple[int, int, str] | None = None
    """A worker, and the step at which it dies amid the `forward` or `backward` pass."""
    breaks_off: tuple[int, str] | None = None
    """A worker whose wait for something of the coordinator is broken off, once."""
    call: str = ""
    """What the loop `calling` calls after every epoch."""
    folder: str = ""
    """Where it writes files."""
    hangs_in: tuple[int, int, int, float] | None = None
    """A worker, a step, which `average` since its batch was handed out, and for how many seconds."""
    computes: tuple[int, int, float] | None = None
    """A worker, a step, and for how many seconds it lets none of its other threads run there."""
    hangs_in_order: tuple[int, int] | None = None
    """A worker that is stopped when the order of an epoch is agreed on, and which epoch."""
    hangs_last: tuple[int, float] | None = None
    """A worker that is stopped after the last epoch but one of the loop `looking`, and for how long."""
    loses_order: tuple[int, int] | None = None
    """A worker whose group breaks when the others have agreed on the order of an epoch, and which."""
    dies: dict[int, str] = field(default_factory=dict)
    """Workers that are killed before the first view: `in prepare`, `shaking hands` or `when ready`."""

    lengths: tuple[int, ...] = ()
    """By worker: how many of the samples are its own, where each has its own."""
    batches: tuple[int, ...] = ()
    """By worker: its batch size, where each has its own data."""

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
        self.found_after: dict[int, Any] = {}
        """What the workers found together after each epoch."""
        self.num_averaged = (-1, 0)
        self.exaggeration = 1.0
        self.used: dict[tuple[int, int], list[int]] = {}
        """The samples of each step that were this worker's, by epoch and step."""
        self.stages: dict[tuple[int, int], int] = {}
        """The last merge that was over before each step, by epoch and step."""
        if not is_alone:
            gangline.init(timeout_s=setup.timeout_s)

    def loader(self) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(self.setup.samples, FEATURES, generator=generator)
        y = torch.randint(0, CLASSES, (self.setup.samples,), generator=generator)
        if self.setup.lengths and not self.is_alone:
            return self._own_loader(TensorDataset(x, y, torch.arange(self.setup.samples)))
        weights, own = torch.linspace(1, 2, self.setup.samples), torch.Generator().manual_seed(9)
        is_weighted = self.setup.order == "weighted"
        return DataLoader(
            TensorDataset(x, y, torch.arange(self.setup.samples)),
            batch_size=self.setup.batch,
            num_workers=self.setup.num_workers,
            sampler=WeightedRandomSampler(weights, len(x), generator=own) if is_weighted else None,
            shuffle=self.setup.order not in ("sequential", "weighted"),
            generator=torch.Generator().manual_seed(9) if self.setup.order == "generator" else None,
        )

    def _own_loader(self, union: TensorDataset) -> DataLoader[Any]:
        """This worker's part of the data, which is all that it has."""
        worker = gangline.worker.api._job.session.place.worker
        lengths, batches = self.setup.lengths, self.setup.batches
        first = sum(lengths[:worker])
        own = TensorDataset(*union[first : first + lengths[worker]])
        is_shuffled = self.setup.order == "shuffled" and lengths[worker] > 0
        return DataLoader(own, batch_size=batches[worker], shuffle=is_shuffled)

    def prepare(self, *objects: Any, stateful: tuple[Any, ...] = (), **options: Any) -> Any:
        if self.is_alone:
            return objects
        worker = gangline.worker.api._job.session.place.worker
        die_before_the_first_view(self.setup.dies.get(worker))
        if self.setup.breaks_off is not None and worker == self.setup.breaks_off[0]:
            break_off_once(self.setup.breaks_off[1])
        if self.setup.exaggerated is not None:
            for model in objects:
                for parameter in model.parameters() if isinstance(model, nn.Module) else ():
                    parameter.register_hook(lambda gradient: gradient * self.exaggeration)
        prepared = gangline.prepare(
            *objects,
            global_batch=None
            if self.setup.loop == "bucketed" or self.setup.lengths
            else self.setup.batch,
            accumulate=self.setup.accumulate,
            allocation=None if self.setup.lengths else self.setup.allocation,
            data="worker" if self.setup.lengths else None,
            stateful=stateful,
            non_finite="evict" if worker in self.setup.evicting else None,
            checkpoint=self.setup.checkpoint,
            every=2,
            **options,
        )
        if self.setup.hangs_in_order is not None and worker == self.setup.hangs_in_order[0]:
            hang_in_order(worker, epoch=self.setup.hangs_in_order[1])
        if self.setup.loses_order is not None and worker == self.setup.loses_order[0]:
            lose_order(epoch=self.setup.loses_order[1])
        return prepared

    def epochs(self) -> Any:
        return range(self.setup.epochs) if self.is_alone else gangline.epochs(self.setup.epochs)

    def batches(self, loader: Any) -> Any:
        """The epoch's batches; waits where the setup says so, for an event of the run."""
        for x, y, index in loader:
            if not self.is_alone:
                handout = gangline.worker.api._job.training.gear.handout
                step = handout.step
                stage = gangline.worker.api._job.training.gear.mode.strategy.stage
                self.stages[handout.epoch, step] = stage
                if index is not None:
                    self.used[handout.epoch, step] = index[: handout.samples].tolist()
                if step in self.setup.wait:
                    wait_for(self.setup.wait[step])
                time.sleep(self.setup.think_s)
                if gangline.worker.api._job.session.place.worker == self.setup.slow_worker:
                    time.sleep(0.008 * len(x))
                worker = gangline.worker.api._job.session.place.worker
                if self.setup.computes is not None and (worker, step) == self.setup.computes[:2]:
                    hold_the_interpreter(self.setup.computes[2])
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

    def average(self, value: float) -> float:
        """The mean over all workers; one of them is stopped at the door, where the setup says so."""
        if self.is_alone:
            return value
        job = gangline.worker.api._job
        step, count = job.training.position.handed_out, 0
        if self.num_averaged[0] == step:
            count = self.num_averaged[1] + 1
        self.num_averaged = (step, count)
        if self.setup.hangs_in is not None:
            *place, for_s = self.setup.hangs_in
            if place == [job.session.place.worker, step, count]:
                job.training.gear.faults._happen(
                    Fault(worker=place[0], kind="hang", step=step, for_s=for_s)
                )
        return gangline.mean(value)


def wait_for(what: str) -> None:
    """Waits until the run's log has it: `joined N` (by decision) or a fault that fired.

    Or, for `file NAME`, until the run folder has that file.
    """
    launch = Launch.from_environment(os.environ)
    assert launch is not None
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if what.startswith("file "):
            if Path(launch.run_dir, what.removeprefix("file ")).exists():
                return
            time.sleep(0.02)
            continue
        for event in read_run(Path(launch.run_dir), notes=[]):
            if isinstance(event, Decision) and what in event.reason:
                return
            if isinstance(event, FaultFired) and what == f"{event.fault} {event.worker}":
                return
        time.sleep(0.02)
    raise AssertionError(f"waited in vain for {what}")


def hold_the_interpreter(for_s: float) -> None:
    """Computes for so long without letting another thread run."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        pass
    sys.setswitchinterval(usual_s)


def break_off_once(what: str) -> None:
    """The first wait for this is broken off, as if the group were lost."""
    client = gangline.worker.api._job.session.client
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
    training = gangline.worker.api._job.training
    cutting = training.cutting
    agree = cutting.agree_on_order
    fault = Fault(worker=worker, kind="hang", step=0, where="call", for_s=2.8)

    def hang_and_agree(exchange: Any, key: tuple[str, int]) -> Any:
        if key == ("order", epoch):
            cutting.agree_on_order = agree  # once: it asks again when it is back
            training.gear.faults._happen(fault)
        return agree(exchange, key)

    cutting.agree_on_order = hang_and_agree


def lose_order(*, epoch: int) -> None:
    """The group breaks for this worker just when the others have agreed on an order, and go on."""
    membership = gangline.worker.api._job.training.gear.membership
    call = membership.call

    def call_and_lose(key: tuple[Any, ...], exchange: Any) -> Any:
        result = call(key, exchange)
        if key == ("order", epoch):
            membership.call = call
            time.sleep(0.5)  # the others are in the first batch of the epoch
            del membership.results[key]
            gangline.worker.api._job.session.communicator.group.abort()
            raise ExchangeAborted("broken off by a test")
        return result

    membership.call = call_and_lose


def die_before_the_first_view(where: str | None) -> None:
    """Sees to it that this process is killed at a place that no fault plan reaches."""

    def die(*args: Any, **kwargs: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if where == "in prepare":
        die()
    elif where == "shaking hands":
        gangline.worker.prepare.preparation.copy_tensors = die
    elif where == "when ready":
        gangline.worker.prepare.preparation._first_view = die


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


class Best:
    """The best value so far, and who has it."""

    value = float("inf")

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]


def logging(parts: Parts) -> dict[str, Any]:
    """What every batch gives is logged."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            if not parts.is_alone:
                gangline.log(loss=loss, label=y.double().mean())
            optimizer.step()
    return describe([model], [optimizer])


def saves_best(parts: Parts) -> dict[str, Any]:
    """Saves what is best by an evaluation after every epoch, as people do."""
    model, best = mlp(), Best()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader(), stateful=(best,))
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        parts.validate(model)
        if parts.means and parts.means[-1] < best.value:
            best.value = parts.means[-1]
            if not parts.is_alone:
                gangline.save(best.state_dict(), Path(parts.setup.folder) / "best.pt")
    return describe([model], [optimizer])


def calling(parts: Parts) -> dict[str, Any]:
    """Makes a call together with the others after every epoch, and keeps what it brings."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for epoch in parts.epochs():
        for x, y, _ in parts.batches(loader):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        if not parts.is_alone:
            parts.means.append(call_together(parts.setup, model, epoch))
    return describe([model], [optimizer])


def counting(parts: Parts) -> dict[str, Any]:
    """After every epoch the workers count themselves: the loop is left by who is alone."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for epoch in range(parts.setup.epochs):
        for x, y, _ in parts.batches(loader):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        if not parts.is_alone:
            own = torch.zeros(1 if parts.setup.call == "sum" else 2000)
            count = gangline.sum(1) if parts.setup.call == "sum" else len(gangline.gather(own))
            parts.found_after[epoch] = count
            if count < 2:
                break
    return describe([model], [optimizer])


def unfreezing(parts: Parts) -> dict[str, Any]:
    """The first layer trains from the third epoch on; who is not there then does not unfreeze it."""
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for epoch in parts.epochs():
        if epoch == 2:
            model[0].requires_grad_(True)
        for x, y, _ in parts.batches(loader):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return describe([model], [optimizer])


def fetching(parts: Parts) -> dict[str, Any]:
    """Before `prepare`, the main worker is killed while it does what the others wait for."""
    found = ""
    if not parts.is_alone:
        worker = gangline.worker.api._job.session.place.worker
        path = Path(parts.setup.folder) / "fetched"
        with gangline.main_first():
            if not path.exists():
                path.write_text(f"by worker {worker}")
            if worker == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            found = path.read_text()
    parts.means.append(found)
    return plain(parts)


MAP_HANG_S = 2.8
"""Longer than the coordinator's patience."""


def mapping(parts: Parts) -> dict[str, Any]:
    """Before `prepare`, the workers make a loop over rows, and one of them is lost in it."""
    if not parts.is_alone:
        parts.means.append(map_rows(parts.setup.call, epoch=0))
    return plain(parts)


def squares(rows: Any, call: str, epoch: int) -> list[int]:
    """The squares of some rows; who is to be lost is lost with the first of them."""
    *_, what, victim = call.split()
    if epoch == 0 and gangline.worker.api._job.session.place.worker == int(victim):
        if what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        hold_the_interpreter(MAP_HANG_S)
    time.sleep(0.01)
    return [row * row for row in rows]


def map_rows(call: str, *, epoch: int) -> list[int]:
    made: list[int] = gangline.map(
        squares, range(60), call, epoch, scheme="SS/SS", grain=2, workers=1, where="job"
    )
    return made


def count_pulled(call: str, *, epoch: int) -> int:
    """How many samples an evaluation has that is pulled, all workers together; one is lost in it."""
    *_, victim = call.split()
    is_victim = gangline.worker.api._job.session.place.worker == int(victim)
    count = 0
    for (rows,) in gangline.evaluate(
        DataLoader(TensorDataset(torch.arange(60)), batch_size=2), scheme="SS"
    ):
        if epoch == 0 and is_victim and count >= 4:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
        count += len(rows)
    return gangline.sum(count)


def call_together(setup: Setup, model: nn.Module, epoch: int) -> Any:
    worker = gangline.worker.api._job.session.place.worker
    path = Path(setup.folder) / f"{epoch}"
    match setup.call:
        case "sum":
            return gangline.sum(1)
        case "gather":
            return gangline.gather(torch.full((worker,), worker))
        case "any":
            return gangline.any(worker == 2)
        case "barrier":
            return gangline.barrier()
        case "main_first" | "killed in main_first":
            with gangline.main_first():
                if gangline.is_main():
                    path.write_text(f"by worker {worker}")
                if setup.call != "main_first" and worker == epoch == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return path.read_text()
        case call if call.startswith("map with"):
            return map_rows(call, epoch=epoch)
        case call if call.startswith("evaluate with"):
            return count_pulled(call, epoch=epoch)
        case "save":
            gangline.save(model.state_dict(), path)
            return torch.load(path)
    raise AssertionError(setup.call)


def averaging(parts: Parts) -> dict[str, Any]:
    """Two means in a row, after every step and after every epoch; the rate follows the epochs."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader(), stateful=(schedule,))
    for epoch in parts.epochs():
        loss = torch.zeros(())
        for x, y, _ in parts.batches(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            parts.average(loss.item())
            parts.average(float(len(x)))
        found = (parts.average(loss.item()), parts.average(float(epoch)))
        parts.found_after[epoch] = found
        schedule.step()
    return describe([model], [optimizer])


def metered(parts: Parts) -> dict[str, Any]:
    """A mean over the workers, in the middle of every step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            if not parts.is_alone:
                gangline.mean(loss, weight=len(y))
            loss.backward()
            optimizer.step()
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


def fetches_ahead(parts: Parts) -> dict[str, Any]:
    """Has the next batch before it computes the present one; a scheduler and momentum go along."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader(), stateful=(schedule,))
    for _ in parts.epochs():
        batches = iter(parts.batches(loader))
        following = next(batches, None)
        while (present := following) is not None:
            following = next(batches, None)
            F.cross_entropy(model(present[0]), present[1]).backward()
            if parts.is_update():
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
        parts.validate(model)
    return describe([model], [optimizer])


def fetches_between(parts: Parts) -> dict[str, Any]:
    """Fetches the next batch between forward and backward, and goes on over the ends of epochs."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())

    def endless() -> Any:
        while True:
            yield from parts.batches(loader)

    batches = endless()
    x, y, _ = next(batches)
    steps = parts.setup.steps
    for _ in range(steps) if parts.is_alone else gangline.steps(steps):
        loss = F.cross_entropy(model(x), y)
        x, y, _ = next(batches)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return describe([model], [optimizer])


class Trap(nn.Module):
    """Sits between two layers, and kills its worker when the pass of a step comes by."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, x: Tensor) -> Tensor:
        self.spring("forward")
        if x.requires_grad:
            x.register_hook(lambda gradient: self.spring("backward"))
        return x

    def spring(self, place: str) -> None:
        if self.parts.is_alone or self.parts.setup.trap is None:
            return
        victim, step, where = self.parts.setup.trap
        job = gangline.worker.api._job
        handout = job.training.gear.handout
        is_there = (job.session.place.worker, place) == (victim, where) and handout is not None
        if is_there and handout.step == step:
            os.kill(os.getpid(), signal.SIGKILL)


def synchronised(parts: Parts) -> dict[str, Any]:
    """BatchNorm over all workers: what it computes does not depend on who is there."""
    model = nn.Sequential(
        nn.Linear(FEATURES, 8),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        Trap(parts),
        nn.Linear(8, 8),
        nn.BatchNorm1d(8, momentum=None),
        nn.ReLU(),
        nn.Linear(8, CLASSES),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader(), sync_batchnorm=True)
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            loss = F.cross_entropy(model(x), y)
            if parts.setup.validate and not parts.is_alone:
                parts.means.append(gangline.mean(loss, weight=len(y)))
            loss.backward()
            if parts.is_update():
                optimizer.step()
                optimizer.zero_grad()
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
            if parts.setup.validate and not parts.is_alone:
                parts.means.append(gangline.mean(fake.mean(), weight=len(fake)))
            opt_g.zero_grad()
            F.softplus(-discriminator(fake)[:, 0]).mean().backward()
            opt_g.step()
    return describe([generator, discriminator], [opt_g, opt_d])


def by_hand(parts: Parts) -> dict[str, Any]:
    """No optimizer: decay and momentum are written out, and the loss is told after the update."""
    model = mlp()
    moments = Moments(model)
    model, loader = parts.prepare(model, parts.loader(), stateful=(moments,))
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            with torch.no_grad():
                for parameter, moment in zip(model.parameters(), moments.values, strict=True):
                    moment.mul_(0.9).add_(parameter.grad + 0.01 * parameter)
                    parameter -= 0.2 * moment
                    parameter.grad = None
            if not parts.is_alone:
                gangline.mean(loss, weight=len(y))
        parts.validate(model)
    return describe([model], [])


class Moments:
    """What a loop keeps of its own for its updates."""

    def __init__(self, model: nn.Module) -> None:
        self.values = [torch.zeros_like(parameter) for parameter in model.parameters()]

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for value, kept in zip(self.values, state["values"], strict=True):
            value.copy_(kept)


class Reader(nn.Module):
    """A GRU that reads columns of numbers chunk by chunk, and goes on with each where it ended."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.cell = nn.GRU(1, 5)
        self.head = nn.Linear(5, 1)
        self.state = gangline.SampleState(columns, 5)

    def forward(self, x: Tensor, columns: list[int]) -> Tensor:
        output, hidden = self.cell(x.unsqueeze(-1), self.state[columns].unsqueeze(0))
        self.state[columns] = hidden[0]
        return self.head(output).squeeze(-1)


def carried(parts: Parts) -> dict[str, Any]:
    """Hidden states go on from step to step, and their columns from worker to worker."""
    columns, chunks, chunk = parts.setup.batch, parts.setup.samples // parts.setup.batch, 3
    generator = torch.Generator().manual_seed(8)
    text = torch.randn(chunks * chunk + 1, columns, generator=generator)
    model = Reader(columns)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    loader = gangline.batches(chunks * columns, global_batch=columns)
    model, optimizer, loader = parts.prepare(model, optimizer, loader)
    for _ in parts.epochs():
        model.state.reset()
        for index, _, _ in parts.batches((index, None, None) for index in loader):
            mine = [i % columns for i in index]
            start = index[0] // columns * chunk
            rows = slice(start, start + chunk), slice(start + 1, start + 1 + chunk)
            x, y = (text[part][:, mine] for part in rows)
            optimizer.zero_grad()
            loss = F.mse_loss(model(x, mine), y)
            loss.backward()
            optimizer.step()
            if not parts.is_alone:
                gangline.mean(loss, weight=len(mine))
    return describe([model], [optimizer])


def carrying(parts: Parts) -> dict[str, Any]:
    """Carries a hidden state of the size of a batch on, which a worker's share does not stay."""
    cell, head = nn.RNNCell(FEATURES, 8), nn.Linear(8, CLASSES)
    model = nn.ModuleList([cell, head])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    hidden = None
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            hidden = torch.zeros(len(x), 8) if hidden is None else hidden.detach()
            optimizer.zero_grad()
            hidden = cell(x, hidden)
            F.cross_entropy(head(hidden), y).backward()
            optimizer.step()
    return describe([model], [optimizer])


class Buckets:
    """A batch sampler whose batches have many sizes."""

    def __init__(self, setup: Setup) -> None:
        generator = torch.Generator().manual_seed(9)
        order = torch.randperm(setup.samples, generator=generator)
        self.batches = [part.tolist() for part in order.split([10, 3, 1, 12, 9, 11])]

    def __iter__(self) -> Any:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def bucketed(parts: Parts) -> dict[str, Any]:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    loader = DataLoader(parts.loader().dataset, batch_sampler=Buckets(parts.setup))
    model, optimizer, loader = parts.prepare(model, optimizer, loader)
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return describe([model], [optimizer])


def baseline(parts: Parts) -> dict[str, Any]:
    """Every step uses a mean over all workers before its backward pass."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            optimizer.zero_grad()
            losses = F.cross_entropy(model(x), y, reduction="none")
            level = float(losses.detach().mean())
            if not parts.is_alone:
                level = gangline.mean(level, weight=len(y))
            (losses * (losses.detach() - level)).mean().backward()
            optimizer.step()
    return describe([model], [optimizer])


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


def _find_loop(name: str) -> Any:
    import elastic_by_hand
    import elastic_epochs
    import elastic_paramserv
    import elastic_pipeline
    import elastic_served
    import elastic_windows

    modules = (
        elastic_by_hand,
        elastic_epochs,
        elastic_paramserv,
        elastic_pipeline,
        elastic_served,
        elastic_windows,
    )
    known = {name: one for module in modules for name, one in vars(module).items()} | globals()
    return known[name]


def run_body(setup: Setup, *, is_alone: bool) -> dict[str, Any]:
    """Runs the setup's loop; what it ended with."""
    before = torch.get_default_dtype()
    try:
        parts = Parts(setup, is_alone=is_alone)
        state = _find_loop(setup.loop)(parts)
    finally:
        torch.set_default_dtype(before)
    is_main = not is_alone and gangline.is_main()
    found = {"means": parts.means, "found_after": parts.found_after, "is_main": is_main}
    found["place"] = (0, 1) if is_alone else (gangline.rank(), gangline.world_size())
    return {"state": state, "used": parts.used, "stages": parts.stages, **found}
