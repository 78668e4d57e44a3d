# SPDX-License-Identifier: Apache-2.0
"""Jobs for the benchmarks of faults: their processes are killed, stopped, woken and replaced.

    with ElasticJob(folder, Part(kind="gangline", folder=str(folder)), workers=4, standbys=2) as job:
        job.await_steps(10)
        os.kill(job.pid(1), signal.SIGKILL)
        job.until(lambda: job.newest_members() == (0, 2, 3), "the others")
        job.join()

Standbys are started with the others and wait, with everything imported, until they are let in: a
python that starts takes seconds of CPU time, which a small machine cannot give while it is measured.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from gangline.emulation.scaling import USABLE_FRACTION
from gangline.engines.coordination import coordinator_process
from gangline.engines.job import Job, count_cores
from gangline.engines.local import LocalEngine
from gangline.eventlog.paths import events_dir
from gangline.eventlog.reader import tail_events
from gangline.files.announcement import read_announcement
from gangline.observe.ledger import read_ledger
from gangline.spec.cluster import Cluster
from gangline.spec.config import RunConfig, SurvivalConfig
from gangline.spec.event import Regrouped, StepDone, ViewAdopted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from elastic_worker import Part
    from gangline.engines.local import WorkerCommand
    from gangline.spec.event import AnyEvent

SCRIPT = Path(__file__).with_name("elastic_worker.py")
TIMEOUT_S = 120.0
POLL_S = 0.02

T = TypeVar("T")


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Where values lie."""

    count: int
    median: float
    p95: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        median, p95 = np.percentile(values, [50, 95])
        return cls(count=len(values), median=median, p95=p95, greatest=max(values))


class EventTail:
    """The events of a running job, read as they are written."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = events_dir(run_dir)
        self._offsets: dict[Path, int] = {}
        self.events: list[AnyEvent] = []
        """All that were read, those of one process in their order."""

    def read(self) -> None:
        """Takes what was written since."""
        for path in sorted(self._folder.glob("*.jsonl")):
            fresh, self._offsets[path] = tail_events(path, self._offsets.get(path, 0))
            self.events += fresh

    def since(self, t: float) -> list[AnyEvent]:
        """What happened from that time on."""
        return [event for event in self.events if event.t >= t]


class ElasticJob:
    """The processes of a job; as a context manager it leaves none behind."""

    def __init__(self, run_dir: Path, part: Part, *, workers: int, standbys: int = 0) -> None:
        self.speed = paced_speed(workers)
        self._job = Job(
            config=RunConfig(
                run="bench",
                cluster=Cluster.of_speeds((self.speed,) * workers),
                survival=SurvivalConfig(respawn=standbys > 0, max_respawns=max(1, standbys)),
            ),
            run_dir=run_dir,
            script=SCRIPT,
        )
        self._part = part
        self._environment = {**os.environ, **part.environment()}
        numbers = range(workers, workers + standbys)
        self._gates = {worker: run_dir / f"gate-{worker}" for worker in numbers}
        commands = self._job.commands(self._environment, cores=count_cores())
        commands += [self._standby(worker, commands[0]) for worker in self._gates]
        self._engine = LocalEngine(commands)
        self._coordination = coordinator_process(self._job, os.environ)
        self.tail = EventTail(run_dir)

    def _standby(self, worker: int, like: WorkerCommand) -> WorkerCommand:
        """A worker with a number of its own, which waits at its gate."""
        os.mkfifo(self._gates[worker])
        launch = msgspec.structs.replace(self._job.launches()[0], worker=worker)
        gated = msgspec.structs.replace(self._part, gate=str(self._gates[worker]))
        return msgspec.structs.replace(
            like,
            worker=worker,
            environment={**like.environment, **launch.to_environment(), **gated.environment()},
            log=self._job.log_of(worker),
        )

    def __enter__(self) -> ElasticJob:
        self._coordination.__enter__()
        self._engine.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.stop()
        self._coordination.__exit__()

    def pid(self, worker: int) -> int:
        """The process of a worker."""
        return self._engine.pid(worker)

    def join(self) -> int:
        """Lets a standby in; returns its number."""
        worker, gate = next(iter(self._gates.items()))
        self._await_standby(worker)
        gate.write_bytes(b"")
        del self._gates[worker]
        return worker

    def await_standbys(self) -> None:
        """Waits until all of them have imported what they need."""
        for worker in self._gates:
            self._await_standby(worker)

    def _await_standby(self, worker: int) -> None:
        ready = Path(f"{self._gates[worker]}.ready")
        self.until(ready.exists, f"standby {worker}")

    def until(self, find: Callable[[], T | None], what: str, *, timeout_s: float = TIMEOUT_S) -> T:
        """Waits for something to be there or true, and returns it."""
        deadline = time.monotonic() + timeout_s
        while True:
            for result in self._engine.poll():
                self._coordination.tell_ended(result)
            self._coordination.tick()
            self.tail.read()
            found = find()
            if found:
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {timeout_s:g} s in vain for {what}; {self._state()}")
            time.sleep(POLL_S)

    def await_spare(self) -> None:
        """Waits until a coordinator stands by, with everything loaded."""
        self.until(lambda: self._coordination.has_spare, "the spare")

    def signal_coordinator(self, number: signal.Signals) -> None:
        """Sends a signal to the coordinator that serves."""
        os.kill(read_announcement(self._job.run_dir).pid, number)

    def await_steps(self, count: int) -> None:
        """Waits until the present members, all of them, have made so many more steps."""
        since = time.time()

        def is_done() -> bool:
            done = [e.worker for e in self.tail.since(since) if isinstance(e, StepDone)]
            return all(done.count(member) >= count for member in self.members()) and bool(done)

        self.until(is_done, f"{count} steps")

    def members(self) -> tuple[int, ...]:
        """Who takes part, by the newest view that somebody adopted."""
        views = [e for e in self.tail.events if isinstance(e, Regrouped | ViewAdopted)]
        return tuple(max(views, key=lambda view: view.view).members) if views else ()

    def lost_samples(self) -> list[str]:
        """What is wrong in the ledger so far; the last epoch need not be complete."""
        self.tail.read()
        return find_lost_samples(self.tail.events, length=self._part.epoch_samples)

    def signal(self, worker: int, number: signal.Signals) -> float:
        """Sends a signal; when."""
        sent_s = time.time()
        os.kill(self.pid(worker), number)
        return sent_s

    def _state(self) -> str:
        ended = ", ".join(f"worker {one.worker} {one.reason}" for one in self._engine.results)
        log = self._job.run_dir / "coordinator.log"
        said = log.read_text(encoding="utf-8")[-500:] if log.exists() else ""
        return f"members {self.members()}; ended: {ended or 'nobody'}; the coordinator said: {said}"


def exit_on_sigterm() -> None:
    """Lets a benchmark that is told to end clean up, as one that is interrupted does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def paced_speed(workers: int) -> float:
    """What equal workers are paced to, so that together they fit the cores."""
    return min(1.0, USABLE_FRACTION * count_cores() / workers)


def find_lost_samples(events: Iterable[AnyEvent], *, length: int) -> list[str]:
    """What is wrong in the ledger; the last epoch need not be complete."""
    ledger = read_ledger(events)
    return ledger.problems(length=length, epochs=max(0, ledger.num_epochs - 1))
