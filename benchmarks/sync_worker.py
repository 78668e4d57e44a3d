# SPDX-License-Identifier: Apache-2.0
"""One node that trains a real model to its end: by gangline, in any mode, or by plain DDP.

The first worker keeps copies of its parameters on the way, with the time. They are judged afterwards,
so that judging costs no contender any time.
"""

from __future__ import annotations

import copy
import os
import random
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import gangline
from cluster_worker import ClusterWorker
from gangline import zoo
from gangline.emulation.pacing import pace
from paced_worker import PART_VARIABLE, Batch, Part, Task, as_it_is
from teams import serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LEARNING_RATE = 0.002
TEST_SAMPLES = 4000
KEPT_EVERY_S = 0.25
JUDGED_TOGETHER = 5
NEAR = 0.02
MOOD_BATCHES = 10
"""So many batches a worker is as slow as it is, before it becomes faster or slower."""


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be trained, and how unsteady its workers are."""

    data: str
    """The folder with MNIST."""
    samples: int
    epochs: int
    seed: int
    target: float
    """The accuracy that is waited for."""
    least_speed: float = 1.0
    """Below 1, workers are now and then slower, down to this part of their speed."""
    slowed: tuple[int, ...] = ()
    """Workers that become five times slower after `change_s`, for good."""
    change_s: float = 0.0


class Digits(Dataset[Batch]):
    """MNIST in memory, a batch at a time."""

    def __init__(self, folder: str, split: str, count: int) -> None:
        names = [f"{split}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
        images = zoo.idx(*(Path(folder) / name for name in names))
        self.pixels, self.labels = images.pixels[:count], images.labels[:count]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        places = torch.as_tensor(indices)
        return (self.pixels[places].float() / 255 - 0.1307) / 0.3081, self.labels[places]


class SyncWorker(ClusterWorker):
    """Trains when it is asked to, and says how far it was when."""

    def answer(self, request: dict[str, Any]) -> object:
        """Does what is asked."""
        if request["do"] != "train":
            return super().answer(request)
        task = msgspec.convert(request["task"], Task)
        training = msgspec.convert(request["training"], Training)
        if self._part.rank >= task.workers:
            return None
        try:
            return self._run(task, training)
        finally:
            self._leave()

    def _run(self, task: Task, training: Training) -> dict[str, Any]:
        torch.manual_seed(training.seed)
        random.seed(1000 * training.seed + self._part.rank)
        data = Digits(training.data, "train", training.samples)
        model: nn.Module = zoo.build_model(task.model, image_size=28)
        plain = model
        optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
        self._pacer = pace(model, self._speed)
        if task.kind == "ddp":
            model, loader = self._join_ddp_over(task, model, data)
            epochs: Iterator[int] = iter(range(training.epochs))
        else:
            loader = self._join_gangline_over(task, model, optimizer, data)
            epochs = gangline.epochs(training.epochs)
        kept: list[tuple[float, dict[str, Tensor]]] = []
        samples, began = 0, time.perf_counter()
        for epoch in epochs:
            if isinstance(loader.sampler, DistributedSampler):
                loader.sampler.set_epoch(epoch)
            for batch, (images, labels) in enumerate(loader):
                self._set_mood(training, batch, time.perf_counter() - began)
                self._pacer.begin(len(labels))
                optimizer.zero_grad()
                loss: Any = F.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                samples += len(labels)
                now = time.perf_counter() - began
                if self._part.rank == 0 and (not kept or now - kept[-1][0] > KEPT_EVERY_S):
                    kept.append((now, copy.deepcopy(plain.state_dict())))
        seconds = time.perf_counter() - began
        kept.append((seconds, copy.deepcopy(plain.state_dict())))
        answer: dict[str, Any] = {"seconds": seconds, "samples": samples}
        if self._part.rank == 0:
            answer |= self._judge(plain, kept, training)
        return answer

    def _set_mood(self, training: Training, batch: int, elapsed_s: float) -> None:
        """Makes this worker as slow as it is to be for its next batches."""
        assert self._pacer is not None
        if batch % MOOD_BATCHES:
            return
        is_late = self._part.rank in training.slowed and elapsed_s > training.change_s
        factor = (0.2 if is_late else 1.0) * random.uniform(training.least_speed, 1.0)
        self._pacer.set_speed(self._speed * factor)

    def _judge(
        self, model: nn.Module, kept: list[tuple[float, dict[str, Tensor]]], training: Training
    ) -> dict[str, float | None]:
        """When the target was reached, by the median of copies on end; and the accuracy at the end.

        A single copy may be good or bad by luck, and is judged by a few images more or less.
        """
        assert self._pacer is not None
        self._pacer.remove()
        self._pacer = None
        test = Digits(training.data, "t10k", TEST_SAMPLES)
        images, labels = test.__getitems__(range(len(test)))

        def accuracy(state: dict[str, Tensor]) -> float:
            model.load_state_dict(state)
            with torch.no_grad():
                return float((model(images).argmax(1) == labels).float().mean())

        torch.set_num_threads(len(os.sched_getaffinity(0)))  # the others only wait by now
        known: dict[int, float] = {}

        def judged(place: int) -> float:
            if place not in known:
                known[place] = accuracy(kept[place][1])
            return known[place]

        # Nothing is reached where not even one copy of many comes near it.
        near = range(0, len(kept), JUDGED_TOGETHER)
        first = next((place for place in near if judged(place) >= training.target - NEAR), 0)
        reached = None
        for low in range(max(0, first - JUDGED_TOGETHER), len(kept) - JUDGED_TOGETHER + 1):
            places = range(low, low + JUDGED_TOGETHER)
            if median(map(judged, places)) >= training.target:
                reached = kept[low + JUDGED_TOGETHER // 2][0]
                break
        last = judged(len(kept) - 1)
        torch.set_num_threads(1)
        return {"to_target_s": reached, "accuracy": last}

    def _join_ddp_over(
        self, task: Task, model: nn.Module, data: Digits
    ) -> tuple[nn.Module, DataLoader[Batch]]:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{task.folder}/rendezvous",
            rank=self._part.rank,
            world_size=task.workers,
        )
        sampler: DistributedSampler[Any] = DistributedSampler(data)
        own_batch = task.global_batch // task.workers
        loader = DataLoader(
            data, batch_size=own_batch, sampler=sampler, collate_fn=as_it_is, drop_last=True
        )
        return nn.parallel.DistributedDataParallel(model), loader

    def _join_gangline_over(
        self, task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, data: Digits
    ) -> DataLoader[Batch]:
        os.environ.update(task.launches[self._part.rank])
        loader = DataLoader(
            data, batch_size=task.global_batch, shuffle=True, collate_fn=as_it_is, drop_last=True
        )
        gangline.init()
        shared: DataLoader[Batch] = gangline.prepare(model, optimizer, loader)[2]
        return shared


def main() -> None:
    """Serves until the benchmark closes the input."""
    torch.set_num_threads(1)
    serve(SyncWorker(msgspec.json.decode(os.environ[PART_VARIABLE], type=Part)).answer)


if __name__ == "__main__":
    main()
