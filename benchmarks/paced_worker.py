# SPDX-License-Identifier: Apache-2.0
"""One worker of an emulated, uneven cluster: joins one job after another, and steps when asked to.

Whatever the job (gangline, plain DDP, nobody else), the worker has the same model, data, loop and
pacer. The pacer's `begin` comes with each batch, and it settles with the last gradient, before that
one is sent: nobody pays for time that it spent in an exchange.
"""

from __future__ import annotations

import os
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import gangline
from gangline import zoo
from gangline.emulation.pacing import Pacer, pace
from gangline.worker.api import shutdown
from teams import serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PART_VARIABLE = "GANGLINE_BENCH_PART"
SAMPLE_SHAPE = (1, 28, 28)
EPOCH_SAMPLES = 60_000
"""As many as MNIST has."""
HELD_SAMPLES = 4096
"""So many of them differ; the epoch repeats them."""
LEARNING_RATE = 0.001

Batch = tuple[Tensor, Tensor]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Which worker of the cluster this process is."""

    rank: int
    speed: float
    """What it is paced to at first, as a fraction of its own speed."""

    def environment(self) -> dict[str, str]:
        """What the worker process must find in its environment."""
        return {PART_VARIABLE: msgspec.json.encode(self).decode(), "OMP_NUM_THREADS": "1"}


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A job to join."""

    kind: str
    """`ddp` (plain DistributedDataParallel over gloo) or `gangline`."""
    model: str
    """A name of the zoo."""
    global_batch: int
    allocation: str
    """How gangline cuts the global batch; DDP cuts it equally."""
    folder: str
    """Where the workers of this job find each other."""
    launches: list[dict[str, str]]
    """What each worker must find in its environment; empty for DDP."""
    workers: int


class CpuTimes(NamedTuple):
    """CPU seconds of the main thread within a step."""

    data_s: float
    compute_s: float
    update_s: float


class RepeatedImages(Dataset[Batch]):
    """Synthetic images in memory, fetched a batch at a time, so that data takes next to no time."""

    def __init__(self) -> None:
        samples = zoo.synthetic(SAMPLE_SHAPE, num_samples=HELD_SAMPLES)
        self._images, self._labels = samples.tensors

    def __len__(self) -> int:
        return EPOCH_SAMPLES

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        places = torch.as_tensor(indices) % HELD_SAMPLES
        return self._images[places], self._labels[places]


def as_it_is(batch: Batch) -> Batch:
    """The data set has put the batch together already."""
    return batch


class Worker:
    """Answers the benchmark's requests."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._speed = part.speed
        self._data = RepeatedImages()
        self._pacer: Pacer | None = None
        self._steps: Iterator[tuple[int, CpuTimes]] = iter(())

    def answer(self, request: dict[str, Any]) -> object:
        """Does what is asked; requests for one rank are nothing to the others."""
        if request.get("rank", self._part.rank) != self._part.rank:
            return None
        match request["do"]:
            case "solo":
                return self._solo(request["model"], request["samples"], steps=request["steps"])
            case "join":
                self._join(msgspec.convert(request["task"], Task))
            case "steps":
                return self._take(request["steps"])
            case "speed":
                self._set_speed(request["speed"])
            case "leave":
                self._leave()
            case unknown:
                raise ValueError(f"nobody knows how to {unknown!r}")
        return None

    # Alone

    def _solo(self, name: str, samples: int, *, steps: int) -> dict[str, list[float]]:
        """Forward and backward passes with nobody else: wall and CPU seconds of each."""
        model, optimizer = self._build(name)
        pacer = pace(model, self._speed)
        images, labels = self._data.__getitems__(range(samples))
        wall_s, cpu_s = [], []
        for _ in range(steps):
            began, cpu_began = time.perf_counter(), time.thread_time()
            pacer.begin(samples)
            optimizer.zero_grad()
            loss: Any = F.cross_entropy(model(images), labels)
            loss.backward()
            wall_s.append(time.perf_counter() - began)
            cpu_s.append(time.thread_time() - cpu_began)
        pacer.remove()
        return {"wall_s": wall_s, "cpu_s": cpu_s}

    # In a job

    def _build(self, name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = zoo.build_model(name, image_size=SAMPLE_SHAPE[-1])
        return model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def _join(self, task: Task) -> None:
        model, optimizer = self._build(task.model)
        # Its hooks must run before those that send gradients.
        self._pacer = pace(model, self._speed)
        if task.kind == "ddp":
            model, loader = self._join_ddp(task, model)
        else:
            model, loader = self._join_gangline(task, model, optimizer)
        self._steps = self._train(model, optimizer, loader)

    def _join_ddp(self, task: Task, model: nn.Module) -> tuple[nn.Module, DataLoader[Batch]]:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{task.folder}/rendezvous",
            rank=self._part.rank,
            world_size=task.workers,
        )
        sampler: DistributedSampler[Any] = DistributedSampler(self._data)
        own_batch = task.global_batch // task.workers
        loader = DataLoader(
            self._data, batch_size=own_batch, sampler=sampler, collate_fn=as_it_is, drop_last=True
        )
        return nn.parallel.DistributedDataParallel(model), loader

    def _join_gangline(
        self, task: Task, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[nn.Module, DataLoader[Batch]]:
        os.environ.update(task.launches[self._part.rank])
        loader = DataLoader(
            self._data,
            batch_size=task.global_batch,
            shuffle=True,
            collate_fn=as_it_is,
            drop_last=True,
        )
        gangline.init()
        prepared = gangline.prepare(model, optimizer, loader, allocation=task.allocation)
        return prepared[0], prepared[2]

    def _train(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[Batch]
    ) -> Iterator[tuple[int, CpuTimes]]:
        """Trains for ever; each `next` is one step."""
        assert self._pacer is not None
        marks = [time.thread_time()]
        while True:
            for images, labels in loader:
                marks.append(time.thread_time())
                self._pacer.begin(len(labels))
                optimizer.zero_grad()
                loss: Any = F.cross_entropy(model(images), labels)
                loss.backward()
                marks.append(time.thread_time())
                optimizer.step()
                marks.append(time.thread_time())
                laps = [after - before for before, after in pairwise(marks)]
                yield len(labels), CpuTimes(*laps)
                marks = [time.thread_time()]

    def _take(self, count: int) -> dict[str, Any]:
        threads_before = thread_cpu_s()
        walls, samples, cpu = [], [], []
        began = mark = time.perf_counter()
        for _ in range(count):
            size, times = next(self._steps)
            now = time.perf_counter()
            walls.append(now - mark)
            samples.append(size)
            cpu.append(times)
            mark = now
        threads = {
            name: used - threads_before.get(name, 0.0) for name, used in thread_cpu_s().items()
        }
        return {
            "seconds": mark - began,
            "walls_s": walls,
            "samples": samples,
            "main_cpu_s": [sum(lap) / count for lap in zip(*cpu, strict=True)],
            "thread_cpu_s": {name: used / count for name, used in threads.items()},
        }

    def _set_speed(self, speed: float) -> None:
        self._speed = speed
        if self._pacer is not None:
            self._pacer.set_speed(speed)

    def _leave(self) -> None:
        self._steps = iter(())
        if self._pacer is not None:
            self._pacer.remove()
            self._pacer = None
        shutdown()
        if dist.is_initialized():
            dist.destroy_process_group()


def thread_cpu_s() -> dict[str, float]:
    """CPU seconds of each thread that Python knows, by name; of the others together as `torch`."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    used: dict[str, float] = {}
    for folder in Path("/proc/self/task").iterdir():
        try:
            on_cpu_ns = int((folder / "schedstat").read_text(encoding="utf-8").split()[0])
        except OSError:  # the thread has ended
            continue
        name = names.get(int(folder.name), "torch")
        used[name] = used.get(name, 0.0) + on_cpu_ns / 1e9
    return used


def main() -> None:
    """Serves until the benchmark closes the input."""
    torch.set_num_threads(1)
    serve(Worker(msgspec.json.decode(os.environ[PART_VARIABLE], type=Part)).answer)


if __name__ == "__main__":
    main()
