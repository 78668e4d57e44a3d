# SPDX-License-Identifier: Apache-2.0
"""A worker that trains, and is observed or not: see `observing.py`."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import gangline
from gangline.eventlog import EventWriter, NullWriter
from gangline.worker.job import job
from gangline.worker.loop import batches
from gangline.worker.telling.logbook import LogBook
from gangline.worker.telling.utilisation import Sampler, UtilisationThread

if TYPE_CHECKING:
    from collections.abc import Callable

_WATCHED = (
    (EventWriter, "write"),
    (EventWriter, "flush"),
    (LogBook, "note"),
    (LogBook, "commit"),
    (Sampler, "sample"),
    (batches, "tell_units"),
)
"""All that a worker does to be observed, but for noting two times per unit."""
_CALIBRATION = 2000
CONTENDERS = ("silent", "silent (again)", "events", "all")


Runs = dict[str, list[tuple[float, float]]]
"""By contender: processor time and duration of a step, in each block."""


class Stopwatch:
    """The processor time of some calls, in all threads; of those inside of others, the outer counts."""

    def __init__(self) -> None:
        self.used_s: dict[str, float] = {}
        self._lock = threading.Lock()
        self._inside = threading.local()
        self._own_s = 0.0
        empty = self._timed("nothing", lambda: None)
        for _ in range(_CALIBRATION):
            empty()
        self._own_s = self.used_s.pop("nothing") / _CALIBRATION
        for owner, name in _WATCHED:
            setattr(owner, name, self._timed(name, getattr(owner, name)))

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "is_so", False):
                return call(*args, **kwargs)
            self._inside.is_so = True
            began_s = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self._inside.is_so = False
                with self._lock:
                    used_s = time.thread_time() - began_s - self._own_s
                    self.used_s[name] = self.used_s.get(name, 0.0) + used_s

        return run


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


def body(blocks: int, steps: int, hidden: int) -> tuple[Runs, dict[str, float]]:
    """What one worker measured: the two runs of each contender and block; and what the calls take.

    The latter as a part of the processor time of all that the worker does meanwhile.
    """
    worker, rng = Observed(hidden), random.Random(0)
    worker.measure("all", steps)
    found: Runs = {name: [] for name in CONTENDERS}
    for _ in range(blocks):
        order = rng.sample(CONTENDERS, len(CONTENDERS))
        first = {name: worker.measure(name, steps) for name in order}
        second = {name: worker.measure(name, steps) for name in reversed(order)}
        for name in CONTENDERS:
            cpu_s, wall_s = zip(first[name], second[name], strict=True)
            found[name].append((sum(cpu_s) / 2, sum(wall_s) / 2))
    watch = Stopwatch()
    began_s = time.process_time()
    worker.measure("all", 4 * steps)
    total_s = time.process_time() - began_s
    return found, {name: used_s / total_s for name, used_s in watch.used_s.items()}
