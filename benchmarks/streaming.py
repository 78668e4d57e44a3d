# SPDX-License-Identifier: Apache-2.0
"""What it costs to send event logs to the coordinator: processor time per worker.

    python benchmarks/streaming.py                       # 1 and 8 workers at 50 steps/s: 2 minutes
    python benchmarks/streaming.py --seconds 10 --workers 4

A machine's launcher sends the logs of its workers, which a process beside it writes, to a coordinator:
three processes, so that each one's time is its own. The same without a line being written, with the
launcher's thread not started, is what the coordinator and the launcher cost anyway; what is more is
the cost of sending. The bar is half a per cent of a core per worker, on both sides together.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
from websockets.sync.client import connect

from gangline.coordinator.server import CoordinatorServer, Driver, Keys
from gangline.coordinator.settings import Settings
from gangline.engines.job import Job
from gangline.engines.streaming.stream import EventStream
from gangline.eventlog import EventWriter, log_path, read_run
from gangline.protocol.messages import PROTOCOL_VERSION, Hello, encode
from gangline.protocol.streaming import machine_name
from gangline.spec.config import RunConfig
from gangline.spec.event import StepDone
from gangline.spec.exchange.address import WireAddress
from harness import machine_facts
from paced_teams import table, write_results

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

KEY = "the key of a machine"
TOKEN = "the-token-of-a-benchmark"
STEPS_PER_S = 50
LIMIT = 0.005
"""Of a core, per worker."""
_SPAWN = multiprocessing.get_context("spawn")


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What sending took, in processor seconds per second, over what there is anyway."""

    workers: int
    launcher: float
    coordinator: float
    lines: int
    """How many events arrived."""

    @property
    def per_worker(self) -> float:
        """Both sides together."""
        return (self.launcher + self.coordinator) / self.workers


def serve(folder: Path, line: Connection) -> None:
    """A coordinator, until it is told to end."""
    driver = Driver(Settings(run="bench", expected_workers=1000), folder)
    server = CoordinatorServer(driver, keys=Keys.of_worker(TOKEN))
    server.start()
    line.send(server.url)
    line.recv()
    server.stop()


def launch(folder: Path, url: str, line: Connection, *, sends: bool) -> None:
    """A launcher's part in it, until it is told to end."""
    token = folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    job = Job(config=RunConfig(run="bench"), run_dir=folder, coordinator=url, token=token)
    stream = EventStream(job, KEY) if sends else None
    line.send("ready")
    line.recv()
    line.send("" if stream is None else stream.finish())


def write(folder: Path, workers: int, seconds: float) -> None:
    """Writes what so many workers would."""
    logs = [
        EventWriter(log_path(folder, f"worker {one}"), run="bench", source=f"worker {one}")
        for one in range(workers)
    ]
    began = time.monotonic()
    for step in range(int(seconds * STEPS_PER_S)):
        time.sleep(max(0.0, began + step / STEPS_PER_S - time.monotonic()))
        for worker, log in enumerate(logs):
            log.write(
                StepDone(
                    t=time.time(), worker=worker, step=step, epoch=step // 1000, view=3,
                    samples=64, start=step * 256, stop=step * 256 + 256, compute_s=0.0123456789,
                    data_s=0.00123456789, exchange_s=0.0023456789, update_s=0.000456789,
                )
            )  # fmt: skip
    for log in logs:
        log.close()


def measure(workers: int, seconds: float, *, sends: bool) -> tuple[float, float, int]:
    """Processor time of launcher and coordinator per second, and how many events arrived."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as lines:
        here, there = Path(name, "here"), Path(name, "there")
        here.mkdir()
        there.mkdir()
        (ours, theirs), (own, its) = _SPAWN.Pipe(), _SPAWN.Pipe()
        coordinator = _SPAWN.Process(target=serve, args=(there, theirs))
        coordinator.start()
        url = ours.recv()
        launcher = _SPAWN.Process(target=launch, args=(here, url, its), kwargs={"sends": sends})
        launcher.start()
        own.recv()
        for worker in range(workers):
            lines.enter_context(greeted(url, worker))
        watched = [psutil.Process(launcher.pid), psutil.Process(coordinator.pid)]
        before = [sum(one.cpu_times()[:2]) for one in watched]
        began = time.monotonic()
        writer = _SPAWN.Process(target=write, args=(here, workers, seconds))
        writer.start()
        writer.join()
        took_s = time.monotonic() - began
        used = [
            (sum(one.cpu_times()[:2]) - start) / took_s
            for one, start in zip(watched, before, strict=True)
        ]
        own.send("end")
        problem = own.recv()
        ours.send("end")
        launcher.join()
        coordinator.join()
        if problem:
            raise RuntimeError(problem)
        arrived = sum(isinstance(event, StepDone) for event in read_run(there, notes=[]))
    return used[0], used[1], arrived


def greeted(url: str, worker: int) -> connect:
    """A worker's line to the coordinator, which says nothing but hello."""
    line = connect(
        f"{url}/ws/worker",
        additional_headers={"Authorization": f"Bearer {TOKEN}"},
        proxy=None,
        compression=None,
        legacy=True,
    )
    line.send(
        encode(
            Hello(
                protocol=PROTOCOL_VERSION, run="bench", worker=worker, host="here",
                pid=os.getpid() + worker, address=WireAddress(host="127.0.0.1", port=1),
                machine=machine_name(KEY),
            )
        )
    )  # fmt: skip
    return line


def cost_of(workers: int, seconds: float) -> Cost:
    """With sending, less without."""
    idle_launcher, idle_coordinator, _ = measure(workers, seconds, sends=False)
    launcher, coordinator, lines = measure(workers, seconds, sends=True)
    expected = workers * int(seconds * STEPS_PER_S)
    if lines != expected:
        raise RuntimeError(f"{lines} of {expected} events arrived")
    return Cost(
        workers=workers,
        launcher=launcher - idle_launcher,
        coordinator=coordinator - idle_coordinator,
        lines=lines,
    )


def main() -> None:
    """Measures, prints and saves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8])
    given = parser.parse_args()
    costs = [cost_of(workers, given.seconds) for workers in given.workers]
    rows = [
        [
            str(cost.workers),
            f"{cost.launcher:.3%}",
            f"{cost.coordinator:.3%}",
            f"{cost.per_worker:.3%}",
            "yes" if cost.per_worker <= LIMIT else "no",
        ]
        for cost in costs
    ]
    heads = ["workers", "launcher", "coordinator", "per worker", f"within {LIMIT:.1%}"]
    write_results("streaming", f"{table(heads, rows)}\n", [machine_facts(), *costs])


if __name__ == "__main__":
    main()
