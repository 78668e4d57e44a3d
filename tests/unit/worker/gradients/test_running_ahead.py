# SPDX-License-Identifier: Apache-2.0
"""A worker that is alone runs ahead of its GPU, which is made up: memory of this machine."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from made_up_device import COMPUTE_MS, MadeUpDevice, MadeUpMark
from made_up_device import made_up_device as made_up_device
from runtime_jobs import FEATURES, samples
from runtime_jobs import alone as alone
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

import gangline
from gangline.eventlog import read_run
from gangline.spec.event import GradientNotFinite, StepDone
from gangline.worker import api
from gangline.worker.loop.gear import Gear
from gangline.worker.telling.deviceclock import DeviceClock
from gangline.worker.telling.stepclock import StepClock, StepTimes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gangline.spec.event import Event

STEPS = 6
BATCH = 4


class Reads(TorchDispatchMode):
    """Counts how often a number is read out of a tensor, which waits for its device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.fixture
def device(
    made_up_device: MadeUpDevice, alone: None, monkeypatch: pytest.MonkeyPatch
) -> MadeUpDevice:
    """The only worker of a job has a coordinator."""
    monkeypatch.setattr(Gear, "is_passing_through", False)
    return made_up_device


class Normalised(nn.Module):
    """With running statistics, and states of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(FEATURES)
        self.linear = nn.Linear(FEATURES, 1)
        self.state = gangline.SampleState(BATCH * STEPS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(x)).squeeze(1)


class Job:
    """A training on the made-up device, step by step."""

    def __init__(self, folder: Path, **options: Any) -> None:
        api.shutdown()
        gangline.init(run_dir=str(folder))
        torch.manual_seed(7)
        model = Normalised()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        loader = DataLoader(samples(BATCH * STEPS), batch_size=BATCH)
        self.model, self.optimizer, self.loader = gangline.prepare(
            model, optimizer, loader, **options
        )
        self._folder = folder

    def step(self, x: torch.Tensor, y: torch.Tensor, *, scale: float = 1.0) -> None:
        self.optimizer.zero_grad()
        output = self.model(x)
        self.model.state[torch.arange(BATCH)] = output
        (scale * F.mse_loss(output, y.squeeze(1))).backward()
        self.optimizer.step()

    def events(self) -> list[Event]:
        api.shutdown()
        return list(read_run(self._folder))


@contextmanager
def waiting_for(device: MadeUpDevice) -> Iterator[list[int]]:
    """How often the device was waited for inside, in a list of one."""
    counted = [0]
    before, reads = device.num_waits, Reads()
    with reads:
        yield counted
    counted[0] = device.num_waits - before + reads.count


def test_a_step_of_a_group_of_one_waits_for_nothing(device: MadeUpDevice, tmp_path: Path) -> None:
    job = Job(tmp_path)
    waits = []
    batches = iter(job.loader)
    batch = next(batches)
    for number in range(STEPS - 1):
        with waiting_for(device) as counted:
            job.step(*batch)
            batch = next(batches)
        waits.append(counted[0])
        if number == 2:
            device.catch_up()  # then the sizes are read that nobody has waited for
    assert waits == [1, 0, 0, 0, 0], "only to know the time of the first step"
    steps = [event for event in job.events() if isinstance(event, StepDone)]
    assert [step.compute_s for step in steps] == pytest.approx([COMPUTE_MS / 1000] * len(steps))


def test_what_is_computed_alone_is_what_plain_torch_computes(
    device: MadeUpDevice, tmp_path: Path
) -> None:
    torch.manual_seed(7)
    plain = Normalised()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for x, y in DataLoader(samples(BATCH * STEPS), batch_size=BATCH):
        optimizer.zero_grad()
        F.mse_loss(plain(x), y.squeeze(1)).backward()
        optimizer.step()
    job = Job(tmp_path)
    for x, y in job.loader:
        job.step(x, y)
    for ours, expected in zip(job.model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, expected)
    assert torch.equal(job.model.norm.running_mean, plain.norm.running_mean)


def test_a_gradient_that_is_not_finite_is_named_with_its_step_when_it_is_known(
    device: MadeUpDevice, tmp_path: Path
) -> None:
    job = Job(tmp_path)
    for number, (x, y) in enumerate(job.loader):
        job.step(x, y, scale=math.inf if number == 2 else 1.0)
    wrong = [event.step for event in job.events() if isinstance(event, GradientNotFinite)]
    assert wrong[0] == 2


def test_a_wrong_gradient_is_named_before_a_checkpoint_is_taken(
    device: MadeUpDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    job = Job(tmp_path / "run", checkpoint=str(tmp_path / "kept"), every=2)
    monkeypatch.setattr(
        "gangline.worker.checks.late_sizes.tell_wrong", lambda *_, **__: told.append("wrong")
    )
    monkeypatch.setattr(
        "gangline.worker.checkpoint.writer.capture", lambda *_: told.append("kept") or 1 / 0
    )
    for number, (x, y) in enumerate(job.loader):
        job.step(x, y, scale=math.inf if number == 1 else 1.0)
        if "kept" in told:
            break
    assert told == ["wrong", "kept"]


def test_who_is_put_out_for_a_wrong_gradient_does_not_use_it(
    device: MadeUpDevice, tmp_path: Path
) -> None:
    job = Job(tmp_path, non_finite="evict")
    x, y = next(iter(job.loader))
    before = [parameter.clone() for parameter in job.model.parameters()]
    with pytest.raises(gangline.GanglineError, match="not finite"):
        job.step(x, y, scale=math.inf)
    for now, then in zip(job.model.parameters(), before, strict=True):
        assert torch.equal(now, then)


# --- the clock ---------------------------------------------------------------------------------------


def clocked(device: MadeUpDevice, *, lags: bool = True) -> DeviceClock:
    def mark() -> Any:
        made = MadeUpMark(device)
        made.record()
        return made if lags else None

    return DeviceClock(mark)


def test_the_time_of_a_step_of_another_size_is_waited_for() -> None:
    device = MadeUpDevice()
    clock = clocked(device)
    for size, waits in [(8, 1), (8, 1), (8, 1), (3, 2), (8, 3)]:
        clock.begin()
        clock.end()
        assert clock.take(size, is_drawn=False) == pytest.approx(COMPUTE_MS / 1000)
        assert device.num_waits == waits


def test_steps_whose_sizes_are_drawn_are_compared_by_the_sample() -> None:
    device = MadeUpDevice()
    clock = clocked(device)
    for size, seconds in [(8, 0.020), (4, 0.010), (16, 0.040)]:
        clock.begin()
        clock.end()
        assert clock.take(size, is_drawn=True) == pytest.approx(seconds)
    assert device.num_waits == 1


def test_the_host_s_own_time_counts_where_the_device_is_waited_for() -> None:
    clock = clocked(MadeUpDevice(), lags=False)
    clock.begin()
    clock.end()
    assert clock.take(8, is_drawn=False) is None


def test_a_step_is_not_longer_than_it_took() -> None:
    now = [0.0]
    clock = StepClock(lambda: now[0], clocked(MadeUpDevice()))
    for lap, seconds in [(clock.handed_out, 0.004), (clock.computed, 0.002)]:
        now[0] += seconds
        lap()
    now[0] += 0.019  # the queue is full: the device is at the step before
    clock.updated()
    times = clock.take(8)
    assert times == StepTimes(
        data_s=pytest.approx(0.004),
        compute_s=pytest.approx(COMPUTE_MS / 1000),
        update_s=pytest.approx(0.001),
    )
