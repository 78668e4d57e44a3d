# SPDX-License-Identifier: Apache-2.0
"""Jobs in emulated networks: teams that are started once, and join one job after another.

with ClusterTeam(8) as team:
    with Emulation(cluster) as emulation:
        team.enter(emulation)
        with team.job(Entry(kind="gangline", ...), emulation) as job:
            seconds = job.take(5)
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.emulation.gates import dial_coordinator
from gangline.emulation.networks import INTERFACE, EmulatedNetwork
from gangline.emulation.scaling import scale_speeds
from gangline.engines.coordination import coordinator_process
from gangline.engines.job import Job
from gangline.engines.local import child_command
from gangline.spec.cluster import Cluster
from gangline.spec.config import FLAT, BatchConfig, ExchangeConfig, RunConfig
from gangline.spec.enclosure import OPEN
from gangline.spec.exchange.structure import Structure
from paced_teams import START_TIMEOUT_S, TIMEOUT_S
from paced_worker import Part, Task
from teams import Team

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence


WORKER = Path(__file__).with_name("cluster_worker.py")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A job of some nodes of the cluster."""

    kind: str
    """`gangline` or `ddp`."""
    model: str
    global_batch: int
    nodes: tuple[int, ...]
    """The nodes that take part: worker k of the job is node `nodes[k]`."""
    shares: tuple[int, ...] = ()
    """Of each worker; DDP cuts equally."""
    structure: Structure | None = None
    """Of worker numbers; None: one ring, in worker order."""


class Emulation:
    """A cluster's network, whose gates lead to the coordinator of whichever job is being joined."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        cores = len(os.sched_getaffinity(0))
        # Speeds that are all 1 would not be scaled, and the cores would be the limit.
        speeds = [0.999 * node.speed for node in cluster.nodes]
        self.speeds = list(scale_speeds(speeds, cores).speeds)
        self.current = Path()
        """The run folder of the job that is being joined."""
        self.network = EmulatedNetwork(cluster, dial=self._dial)

    def __enter__(self) -> Emulation:
        self.network.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.network.__exit__(*exception)

    def _dial(self) -> socket.socket:
        return dial_coordinator(self.current)


class ClusterTeam:
    """One process per node."""

    def __init__(self, count: int, *, worker: Path = WORKER) -> None:
        parts = [Part(rank=rank, speed=1.0) for rank in range(count)]
        # However the benchmark ends: a process that waits for others in an exchange hears of nothing.
        command = [*child_command(OPEN), sys.executable, str(worker)]
        self.team = Team(command, environments=[part.environment() for part in parts])

    def __enter__(self) -> ClusterTeam:
        return self

    def __exit__(self, *exception: object) -> None:
        self.team.close()

    def enter(self, emulation: Emulation) -> None:
        """Puts the processes into the network of a cluster, and makes them as slow as its nodes."""
        pid = os.getpid()
        namespaces = [
            f"/proc/{pid}/fd/{enclosure.namespace}" for enclosure in emulation.network.enclosures
        ]
        request = {"do": "enter", "namespaces": namespaces, "interface": INTERFACE}
        request["speeds"] = emulation.speeds
        self.team.ask(request, timeout_s=START_TIMEOUT_S)

    def measure_alone(
        self, model: str, *, samples: Sequence[Sequence[int]], seconds: float
    ) -> list[dict[int, list[float]]]:
        """Steps of all nodes at once, without an exchange: seconds of each step, by samples."""
        request = {"do": "alone", "model": model, "samples": samples, "seconds": seconds}
        answers = self.team.ask(request, timeout_s=START_TIMEOUT_S)[: len(samples)]
        return [{int(size): times for size, times in answer.items()} for answer in answers]

    @contextlib.contextmanager
    def job(self, entry: Entry, emulation: Emulation) -> Iterator[ClusterJob]:
        """A job that its nodes have joined; they leave it in the end."""
        with contextlib.ExitStack() as stack:
            folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="gangline-bench-"))
            )
            launches: list[dict[str, str]] = []
            if entry.kind == "gangline":
                launches = self._coordinate(entry, emulation, folder, stack)
            task = Task(
                kind=entry.kind,
                model=entry.model,
                global_batch=entry.global_batch,
                allocation="balanced",
                folder=str(folder),
                launches=launches,
                workers=len(emulation.cluster.nodes),
            )
            self.team.ask(
                {"do": "join", "task": msgspec.to_builtins(task)}, timeout_s=START_TIMEOUT_S
            )
            yield ClusterJob(self.team)
            self.team.ask({"do": "leave"}, timeout_s=TIMEOUT_S)

    def _coordinate(
        self, entry: Entry, emulation: Emulation, folder: Path, stack: contextlib.ExitStack
    ) -> list[dict[str, str]]:
        """Starts the job's coordinator; what each node must find in its environment."""
        # Speed 1: the workers pace themselves, here as with DDP.
        job = Job(
            config=RunConfig(
                run="bench",
                cluster=Cluster.of_speeds((1.0,) * len(entry.nodes)),
                batch=BatchConfig(shares=tuple(map(float, entry.shares))),
                exchange=ExchangeConfig(structure=entry.structure or FLAT),
            ),
            run_dir=folder,
            script=WORKER,
            enclosures=tuple(emulation.network.enclosures[node] for node in entry.nodes),
        )
        emulation.current = folder
        stack.enter_context(coordinator_process(job, os.environ))
        launches: list[dict[str, str]] = [{} for _ in emulation.cluster.nodes]
        for node, launch in zip(entry.nodes, job.launches(), strict=True):
            launches[node] = launch.to_environment()
        return launches


class ClusterJob:
    """A job that its nodes have joined."""

    def __init__(self, team: Team) -> None:
        self._team = team

    def take(self, count: int) -> float:
        """Seconds of some more steps, by the slowest node's watch."""
        answers: list[Any] = self._team.ask({"do": "steps", "steps": count}, timeout_s=TIMEOUT_S)
        return max(answer["seconds"] for answer in answers if answer is not None)
