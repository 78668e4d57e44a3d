# SPDX-License-Identifier: Apache-2.0
"""Workers whose gradients somebody else exchanges too, in each of the ways that there are."""

from __future__ import annotations

import sys
import types
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from bodies_runtime import FEATURES, TIMEOUT_S, message_of, own_rank, vectors
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import gangline

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def process_group(folder: Path, workers: int) -> Iterator[None]:
    """torch.distributed, as torchrun or accelerate set it up."""
    store = dist.FileStore(str(folder / "store"), workers)
    dist.init_process_group("gloo", store=store, rank=own_rank(), world_size=workers)
    try:
        yield
        # Who takes its connections down while another one's last sum is under way would break that.
        store.set(f"done {own_rank()}", "")
        store.wait([f"done {rank}" for rank in range(workers)], timedelta(seconds=TIMEOUT_S))
    finally:
        dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(FEATURES, 3)
        self.head = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x)))


class Job:
    """A prepared model, and what the loop calls and steps."""

    def __init__(self) -> None:
        self.model = Net()
        self.called: nn.Module = self.model
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loader: Any = DataLoader(vectors(24), batch_size=8)

    def prepare(self) -> None:
        _, _, self.loader = gangline.prepare(self.model, self.optimizer, self.loader)

    def train(self) -> None:
        for x, y in self.loader:
            self.optimizer.zero_grad()
            F.mse_loss(self.called(x), y).backward()
            self.optimizer.step()


# --- what others put on ------------------------------------------------------------------------------


def imported(name: str, source: str) -> Any:
    """A stand-in for a library that is not installed here: a module with its name."""
    module = types.ModuleType(name)
    exec(source, module.__dict__)
    sys.modules[name] = module
    return module


DEEPSPEED = """
from torch import nn

class DeepSpeedEngine(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.module = model
"""
HOROVOD = """
import torch

class _DistributedOptimizer(torch.optim.Optimizer):
    def __init__(self, params):
        super(self.__class__, self).__init__(params)

    def step(self, closure=None):
        return super(self.__class__, self).step(closure)

def DistributedOptimizer(optimizer):
    name, base = optimizer.__class__.__name__, optimizer.__class__
    return type(name, (base,), dict(_DistributedOptimizer.__dict__))(optimizer.param_groups)

def make_hook():
    return lambda parameter: None
"""


def ddp(job: Job) -> None:
    job.called = DistributedDataParallel(job.model)


def ddp_inside(job: Job) -> None:
    job.model.body = DistributedDataParallel(job.model.body)  # type: ignore[assignment]


def ddp_around_a_wrapper(job: Job) -> None:
    job.called = DistributedDataParallel(nn.Sequential(job.model))


def composable(job: Job) -> None:
    from torch.distributed._composable.replicate import replicate

    replicate(job.model)


def sharded(job: Job) -> None:
    from torch.distributed.fsdp import fully_shard

    fully_shard(job.model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))


def deepspeed(job: Job) -> None:
    job.called = imported("deepspeed.runtime.engine", DEEPSPEED).DeepSpeedEngine(job.model)


def horovod(job: Job) -> None:
    library = imported("horovod.torch.optimizer", HOROVOD)
    job.optimizer = library.DistributedOptimizer(job.optimizer)


def horovod_hook(job: Job) -> None:
    library = imported("horovod.torch.optimizer", HOROVOD)
    job.model.head.bias.register_post_accumulate_grad_hook(library.make_hook())


def zero(job: Job) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    job.optimizer = ZeroRedundancyOptimizer(job.model.parameters(), torch.optim.SGD, lr=0.1)


def own_hook(job: Job) -> None:
    def exchange(gradient: torch.Tensor) -> torch.Tensor:
        summed = gradient.clone()
        dist.all_reduce(summed)
        return summed

    job.model.body.weight.register_hook(exchange)


def own_callback(job: Job) -> None:
    """As early recipes do it: all gradients are summed when the pass is over."""

    def sum_all() -> None:
        dist.all_reduce(torch.cat([p.grad.flatten() for p in job.model.parameters()]))

    def when_over(gradient: torch.Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(sum_all)

    job.model.body.weight.register_hook(when_over)


def exchange_twice(kind: str, folder: Path, workers: int, is_before: bool = False) -> str:
    """The error that the job ends with when somebody else exchanges its gradients too."""
    gangline.init(timeout_s=TIMEOUT_S)
    with process_group(folder, workers):
        job = Job()

        def run() -> None:
            if is_before:
                globals()[kind](job)
                job.prepare()
            else:
                job.prepare()
                globals()[kind](job)
            job.train()

        return message_of(run)


# --- what is no business of ours ---------------------------------------------------------------------


def exchange_once(folder: Path, workers: int) -> list[float]:
    """Hooks that exchange nothing, an average of the model, and a model of somebody else's in DDP."""
    gangline.init(timeout_s=TIMEOUT_S)
    with process_group(folder, workers):
        torch.manual_seed(0)
        job = Job()
        seen: list[torch.Tensor] = []
        job.prepare()
        for parameter in job.model.parameters():
            parameter.register_hook(lambda gradient: gradient * 1.0)
            parameter.register_post_accumulate_grad_hook(lambda p: seen.append(p))
        average = torch.optim.swa_utils.AveragedModel(job.model)
        job.called = nn.Sequential(
            job.model
        )  # a wrapper that exchanges nothing, as torch.compile's
        other = DistributedDataParallel(nn.Linear(FEATURES, 1))
        for x, y in job.loader:
            job.optimizer.zero_grad()
            F.mse_loss(job.called(x), y).backward()
            dist.all_reduce(torch.ones(3))  # not within a pass
            job.optimizer.step()
            average.update_parameters(job.model)
            F.mse_loss(other(x), y).backward()
        assert seen
        own = [one.detach().flatten() for one in job.model.parameters()]
        return torch.cat(own).tolist()


def exchange_alone(folder: Path) -> str:
    """In a job of one nothing is exchanged, whoever is asked to."""
    gangline.init(timeout_s=TIMEOUT_S)
    with process_group(folder, 1):
        job = Job()
        job.prepare()
        ddp(job)
        return message_of(job.train)
