# SPDX-License-Identifier: Apache-2.0
"""A job: one script, run by several workers that share a run folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gangline.engines.local import WorkerCommand
from gangline.protocol.launch import DEFAULT_MAX_AWAY_S, Launch
from gangline.spec.enclosure import OPEN, Enclosure
from gangline.spec.exchange.structure import Structure
from gangline.spec.faults import FaultPlan
from gangline.spec.profile import ClusterProfile
from gangline.spec.sync import IN_STEP, Sync
from gangline.spec.wire import WireSettings

if TYPE_CHECKING:
    from collections.abc import Mapping


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, by how many workers, and how unlike they are to be."""

    run: str
    run_dir: Path
    script: Path | None = None
    module: str | None = None
    """Run in place of a script, as `python -m` does."""
    arguments: tuple[str, ...] = ()
    speeds: tuple[float, ...] = (1.0,)
    """One per worker; a worker below 1 paces itself to that fraction of its own speed."""
    scale: float = 1.0
    """What the asked speeds were multiplied with so that they fit this machine's cores."""
    nodes: tuple[str, ...] = ()
    """The name of each worker's node."""
    shares: tuple[float, ...] | None = None
    """Each worker's part of the global batch, in any unit."""
    transport: str | None = None
    wire: WireSettings | None = None
    """How our own transport works; None leaves it to the script."""
    allocation: str | None = None
    """The policy that cuts the global batch; None leaves it to the script."""
    sync: Sync = IN_STEP
    """How tightly groups of workers are held together, where the script does not say."""
    structure: Structure | None = None
    """How the workers exchange, as a tree of groups; None: all in one ring."""
    profile: ClusterProfile | None = None
    """What is known of each worker's node: the structure is planned from it; None: it is not."""
    resume: bool = False
    """Whether to go on from the newest checkpoint, where the script does not say."""
    non_finite: str | None = None
    """What happens to a worker whose gradient is wrong; None leaves it to the script."""
    detector: str = "robust"
    """What tells the coordinator who is slower than usual: a name, or `module:Class`."""
    patience_s: float | None = None
    """How long a worker that others wait for may be silent at least; None: its own default."""
    faults: FaultPlan = FaultPlan()
    """What shall go wrong with the workers."""
    coordinator: str | None = None
    """The address of a coordinator that runs already: the workers join its job."""
    token: Path | None = None
    """The file with that job's token."""
    announced_in: Path | None = None
    """The folder in which that coordinator announces itself, if it can be reached from here."""
    max_away_s: float = DEFAULT_MAX_AWAY_S
    """How long that coordinator may be away when a worker cannot go on without it."""
    respawns: int = 0
    """How many workers that were killed are started again."""
    keeps_going: bool = False
    """Whether the others go on when a worker ends with an error."""
    enclosures: tuple[Enclosure, ...] = ()
    """What each worker is put into; empty: nothing."""

    @property
    def program(self) -> tuple[str, ...]:
        """What python is given: the script, or the module, and the arguments."""
        what = ("-m", self.module) if self.module is not None else (str(self.script),)
        return (*what, *self.arguments)

    @property
    def token_file(self) -> Path:
        """Where the run's token is kept."""
        return self.token or self.run_dir / "token"

    @property
    def profile_file(self) -> Path:
        """Where the coordinator finds the profile."""
        return self.run_dir / "profile.json"

    def log_of(self, worker: int) -> Path:
        """Where a worker's output is kept."""
        return self.run_dir / "workers" / f"{worker}.log"

    def enclosure_of(self, worker: int) -> Enclosure:
        """What a worker is put into."""
        return self.enclosures[worker] if self.enclosures else OPEN

    def launches(self) -> list[Launch]:
        """What each worker is told."""
        is_joining = self.coordinator is not None
        return [
            Launch(
                run=self.run,
                run_dir=str(self.run_dir),
                worker=-1 if is_joining else worker,
                workers=0 if is_joining else len(self.speeds),
                token_file=str(self.token_file),
                coordinator=self.enclosure_of(worker).coordinator or self.coordinator,
                announced_in=None if self.announced_in is None else str(self.announced_in),
                max_away_s=self.max_away_s,
                # A worker with a quota is as slow as it shall be already.
                speed=1.0 if self.enclosure_of(worker).control_group else speed,
                shares=self.shares,
                transport=self.transport,
                wire=self.wire,
                allocation=self.allocation,
                sync=self.sync,
                structure=self.structure,
                resume=self.resume,
                non_finite=self.non_finite,
                faults=self.faults.of(worker),
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
                    **self.enclosure_of(place).environment,
                    **launch.to_environment(),
                },
                log=self.log_of(place),
                enclosure=self.enclosure_of(place),
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
