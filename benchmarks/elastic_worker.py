# SPDX-License-Identifier: Apache-2.0
"""One worker of a job that is tormented: it trains until it is killed, stopped, or told to end.

What it is to do is a `Part` in the environment. Whatever joins the workers (gangline, plain DDP,
torchft), model, data and loop are the same. Gangline writes its event log; the others write their
steps, and what ended them, to `steps-RANK.jsonl`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import gangline
from gangline import zoo
from gangline.emulation.pacing import Pacer, pace
from paced_worker import LEARNING_RATE, PART_VARIABLE, SAMPLE_SHAPE, Batch, RepeatedImages, as_it_is

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIGHTHOUSE_FILE = "lighthouse"
STOP_FILE = "stop"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker of a contender is to do."""

    kind: str
    """`gangline`, `ddp`, `torchft`, or `lighthouse` (what torchft's workers find each other by)."""
    folder: str
    """Where the benchmark and its workers leave each other files."""
    model: str = "lenet5"
    """A name of the zoo."""
    global_batch: int = 64
    epoch_samples: int = 60_000
    gate: str = ""
    """A pipe: the worker takes part when somebody has opened and closed it."""
    rank: int = 0
    workers: int = 1
    speed: float = 1.0
    """What the worker is paced to, for those that gangline does not launch."""
    timeout_s: float = 10.0
    """How long a collective call of DDP and torchft may take."""
    heartbeat_ms: int = 5000
    """After how long a silence torchft takes a worker to be dead; 5000 is its default."""

    def environment(self) -> dict[str, str]:
        """What the worker process must find in its environment."""
        return {PART_VARIABLE: msgspec.json.encode(self).decode(), "OMP_NUM_THREADS": "1"}

    @property
    def steps_file(self) -> Path:
        """Where the worker writes its steps."""
        return Path(self.folder) / f"steps-{self.rank}.jsonl"


class Images(RepeatedImages):
    """Synthetic images, as many as the part says."""

    def __init__(self, num_samples: int) -> None:
        super().__init__()
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples


def build(part: Part) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and an optimizer that has a state."""
    torch.manual_seed(0)
    model = zoo.build_model(part.model, image_size=SAMPLE_SHAPE[-1])
    return model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)


def await_gate(part: Part) -> None:
    """Sleeps, with everything imported, until the worker is to take part."""
    if part.gate:
        Path(f"{part.gate}.ready").touch()
        Path(part.gate).read_bytes()


def train_gangline(part: Part) -> None:
    """The two lines. Ends with the epoch in which the benchmark has left the stop file."""
    data = Images(part.epoch_samples)
    model, optimizer = build(part)
    loader = DataLoader(data, batch_size=part.global_batch, shuffle=True, collate_fn=as_it_is)
    await_gate(part)
    gangline.init()
    model, optimizer, loader = gangline.prepare(model, optimizer, loader)
    stop = Path(part.folder) / STOP_FILE
    for _ in gangline.epochs(sys.maxsize):
        for images, labels in loader:
            optimizer.zero_grad()
            loss: Any = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        if gangline.mean(float(stop.exists())) > 0:
            break


def train_ddp(part: Part) -> None:
    """Plain DDP over gloo, until an exchange fails."""
    model, optimizer = build(part)
    pacer = pace(model, part.speed)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{part.folder}/rendezvous",
        rank=part.rank,
        world_size=part.workers,
        timeout=timedelta(seconds=part.timeout_s),
    )
    joined = nn.parallel.DistributedDataParallel(model)

    def take(batch: Batch) -> int:
        take_step(joined, optimizer, pacer, batch)
        return part.workers

    record(part, batches(part), take)


def train_torchft(part: Part) -> None:
    """Torchft as its documentation shows it, each worker a replica group of its own."""
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    model, optimizer = build(part)
    pacer = pace(model, part.speed)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    timeout = timedelta(seconds=part.timeout_s)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout),
        min_replica_size=1,
        load_state_dict=lambda state: load_state(model, optimizer, state),
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        timeout=timeout,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
        lighthouse_addr=(Path(part.folder) / LIGHTHOUSE_FILE).read_text(encoding="utf-8"),
        replica_id=f"worker_{part.rank}",
    )
    joined = DistributedDataParallel(manager, model)
    managed = Optimizer(manager, optimizer)

    def take(batch: Batch) -> int:
        before = manager.current_step()
        take_step(joined, managed, pacer, batch)
        return manager.num_participants() if manager.current_step() > before else 0

    record(part, batches(part), take)


def load_state(model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Becomes like another worker."""
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def batches(part: Part) -> Iterator[Batch]:
    """This worker's equal part of the data, for ever."""
    data = Images(part.epoch_samples)
    sampler: DistributedSampler[Any] = DistributedSampler(
        data, num_replicas=part.workers, rank=part.rank
    )
    own_batch = max(1, part.global_batch // part.workers)
    loader = DataLoader(data, batch_size=own_batch, sampler=sampler, collate_fn=as_it_is)
    while True:
        yield from loader


def take_step(model: nn.Module, optimizer: Any, pacer: Pacer, batch: Batch) -> None:
    """One step, as slow as the worker is to be."""
    images, labels = batch
    pacer.begin()
    optimizer.zero_grad()
    loss: Any = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    pacer.settle()


def record(part: Part, data: Iterator[Batch], take: Callable[[Batch], int]) -> None:
    """Takes steps and writes down each that counted, with its number of workers; then the error."""
    with part.steps_file.open("w", buffering=1, encoding="utf-8") as file:
        for step, batch in enumerate(data):
            try:
                members = take(batch)
            except Exception as error:
                line = {"t": time.time(), "step": step, "error": f"{type(error).__name__}: {error}"}
                file.write(json.dumps(line) + "\n")
                # The libraries' own threads may wait for the dead for long.
                file.flush()
                os._exit(1)
            if members:
                file.write(json.dumps({"t": time.time(), "step": step, "members": members}) + "\n")


def serve_lighthouse(part: Part) -> None:
    """Lets torchft's workers find each other, until it is killed."""
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, heartbeat_timeout_ms=part.heartbeat_ms
    )
    port = server.address().rsplit(":", 1)[1]
    path = Path(part.folder) / LIGHTHOUSE_FILE
    path.with_suffix(".new").write_text(f"http://127.0.0.1:{port}", encoding="utf-8")
    path.with_suffix(".new").rename(path)
    while True:
        time.sleep(3600)


def main() -> None:
    """Trains as the environment says."""
    torch.set_num_threads(1)
    part = msgspec.json.decode(os.environ[PART_VARIABLE], type=Part)
    kinds = {
        "gangline": train_gangline,
        "ddp": train_ddp,
        "torchft": train_torchft,
        "lighthouse": serve_lighthouse,
    }
    kinds[part.kind](part)


if __name__ == "__main__":
    main()
