# SPDX-License-Identifier: Apache-2.0
"""A worker that trains, and is observed or not: see `observing.py`."""

from __future__ import annotations

import random
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import gangline
from gangline.eventlog import NullWriter
from gangline.worker.job import job
from gangline.worker.telling.utilisation import UtilisationThread

CONTENDERS = ("silent", "silent (again)", "events", "all")


class Observed:
    """A worker that trains, and changes between the contenders."""

    def __init__(self, hidden: int) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        gangline.init()
        model = torch.nn.Sequential(
            torch.nn.Linear(256, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        data = TensorDataset(torch.randn(4096, 256), torch.randint(10, (4096,)))
        self.model, self.optimizer, self.loader = gangline.prepare(
            model, optimizer, DataLoader(data, batch_size=128), allocation="equal"
        )
        self.session = job.opened()
        self.log, self.null = self.session.events, NullWriter()
        self.batches = self.endless()

    def endless(self) -> Any:
        while True:
            yield from self.loader

    def measure(self, contender: str, steps: int) -> tuple[float, float]:
        """Processor time and duration of a step."""
        session, is_all = self.session, contender == "all"
        if session.utilisation is not None:
            session.utilisation.close()
            session.utilisation = None
        session.events = self.null if contender.startswith("silent") else self.log
        if is_all:
            session.utilisation = UtilisationThread(session.place.worker, self.log)
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        for _ in range(steps):
            x, y = next(self.batches)
            loss = F.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if is_all:
                gangline.log(loss=loss)
        return (time.process_time() - began_cpu_s) / steps, (time.perf_counter() - began_s) / steps


def body(blocks: int, steps: int, hidden: int) -> dict[str, list[tuple[float, float]]]:
    """What one worker measured: for each contender and block the two runs of it."""
    worker, rng = Observed(hidden), random.Random(0)
    worker.measure("all", steps)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(blocks):
        order = rng.sample(CONTENDERS, len(CONTENDERS))
        first = {name: worker.measure(name, steps) for name in order}
        second = {name: worker.measure(name, steps) for name in reversed(order)}
        for name in CONTENDERS:
            cpu_s, wall_s = zip(first[name], second[name], strict=True)
            found[name].append((sum(cpu_s) / 2, sum(wall_s) / 2))
    return found
