# SPDX-License-Identifier: Apache-2.0
"""A job: one script, run by several workers that share a run folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gangline.engines.local import WorkerCommand
from gangline.files.tls import TlsFiles
from gangline.protocol.launch import Launch
from gangline.spec.config import RunConfig
from gangline.spec.enclosure import OPEN, Enclosure
from gangline.spec.faults import FaultPlan
from gangline.spec.machines.devices import visible_to
from gangline.spec.profile import ClusterProfile

if TYPE_CHECKING:
    from collections.abc import Mapping


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, by how many workers, and how unlike they are to be."""

    config: RunConfig
    """What was asked of the run."""
    run_dir: Path
    script: Path | None = None
    module: str | None = None
    """Run in place of a script, as `python -m` does."""
    arguments: tuple[str, ...] = ()
    folder: Path | None = None
    """Where the workers run; None: where this process does."""
    scale: float = 1.0
    """What the asked speeds are multiplied with so that they fit this machine's cores."""
    profile: ClusterProfile | None = None
    """What is known of each worker's node, for a structure that is planned; None: nothing."""
    tls: TlsFiles | None = None
    """The certificates of this machine's workers; None: those that the configuration names."""
    coordinator: str | None = None
    """The address of a coordinator that runs already: the workers join its job."""
    token: Path | None = None
    """The file with that job's token."""
    announced_in: Path | None = None
    """The folder in which that coordinator announces itself, if it can be reached from here."""
    machine: str = ""
    """What this launcher is called by the coordinator that it sends event logs to; empty: none."""
    enclosures: tuple[Enclosure, ...] = ()
    """What each worker is put into; empty: nothing."""

    @property
    def run(self) -> str:
        """The name of the run."""
        return self.config.run

    @property
    def speeds(self) -> tuple[float, ...]:
        """One per worker; a worker below 1 paces itself to that fraction of its own speed."""
        return tuple(node.speed * self.scale for node in self.config.cluster.worker_nodes)

    @property
    def respawns(self) -> int:
        """How many workers that were killed are started again."""
        return self.config.survival.num_respawns

    @property
    def program(self) -> tuple[str, ...]:
        """What python is given: the script, or the module, and the arguments."""
        what = ("-m", self.module) if self.module is not None else (str(self.script),)
        return (*what, *self.arguments)

    @property
    def token_file(self) -> Path:
        """Where the run's token is kept."""
        return self.token or self.run_dir / "token"

    def log_of(self, worker: int) -> Path:
        """Where a worker's output is kept."""
        return self.run_dir / "workers" / f"{worker}.log"

    def enclosure_of(self, worker: int) -> Enclosure:
        """What a worker is put into."""
        return self.enclosures[worker] if self.enclosures else OPEN

    def launches(self) -> list[Launch]:
        """What each worker is told."""
        is_joining = self.coordinator is not None
        told = self.config.for_workers
        if self.tls is not None:
            told = msgspec.structs.replace(told, wire=self.tls.applied_to(told.wire))
        faults = FaultPlan(faults=self.config.emulation.faults)
        return [
            Launch(
                run=self.run,
                run_dir=str(self.run_dir),
                worker=-1 if is_joining else worker,
                workers=0 if is_joining else len(self.speeds),
                token_file=str(self.token_file),
                coordinator=self.enclosure_of(worker).coordinator or self.coordinator,
                announced_in=None if self.announced_in is None else str(self.announced_in),
                # A worker with a quota is as slow as it shall be already.
                speed=1.0 if self.enclosure_of(worker).control_group else speed,
                config=told,
                faults=faults.of(worker),
                machine=self.machine,
            )
            for worker, speed in enumerate(self.speeds)
        ]

    def commands(self, environment: Mapping[str, str], *, cores: int) -> list[WorkerCommand]:
        """The worker processes, on a machine with so many cores."""
        threads = thread_environment(environment, speeds=self.speeds, cores=cores)
        shared = {**environment, **threads, "PYTHONUNBUFFERED": "1"}
        return [
            WorkerCommand(
                worker=place,
                arguments=self.program,
                environment={
                    **shared,
                    **visible_to(place, self.config.compute.devices),
                    **self.enclosure_of(place).environment,
                    **launch.to_environment(),
                },
                log=self.log_of(place),
                enclosure=self.enclosure_of(place),
                folder=self.folder,
            )
            for place, launch in enumerate(self.launches())
        ]

    def replacement(
        self, number: int, *, of: int, replaces: int, environment: Mapping[str, str], cores: int
    ) -> WorkerCommand:
        """A worker with a number of its own in the place of another, which began as worker `of`."""
        before = self.commands(environment, cores=cores)[of]
        launch = msgspec.structs.replace(
            self.launches()[of], worker=number, faults=(), replaces=replaces
        )
        return msgspec.structs.replace(
            before,
            worker=number,
            environment={**before.environment, **launch.to_environment()},
            log=self.log_of(number),
        )


def thread_environment(
    environment: Mapping[str, str], *, speeds: tuple[float, ...], cores: int
) -> dict[str, str]:
    """How many threads each worker computes with: its part of the cores, unless the user said.

    Where a speed is emulated everybody gets one thread: pacing counts the CPU time of one, and
    workers with more would not be as fast as asked relative to the others.
    """
    if "OMP_NUM_THREADS" in environment:
        return {}
    is_paced = any(speed < 1 for speed in speeds)
    count = 1 if is_paced else max(1, cores // len(speeds))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    return {name: str(count) for name in names if name not in environment}


def count_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
