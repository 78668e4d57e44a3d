# SPDX-License-Identifier: Apache-2.0
"""Emulated, uneven clusters for the benchmarks: their processes, their jobs, and their solo speeds.

    with PacedTeam([0.4, 0.2]) as team:
        costs = fit([team.measure_alone("lenet5", rank=r, samples=[8, 32]) for r in range(2)])
        with team.job(JobOptions(model="lenet5", global_batch=64, allocation="balanced")) as job:
            taken = job.take(20)

The processes outlive their jobs, so that a benchmark with many jobs starts them once.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import psutil

from gangline.engines.coordination import coordinator_process
from gangline.engines.job import Job
from gangline.eventlog import read_run
from gangline.planning.allocation.policies import balanced, slowest_s
from gangline.spec.cluster import Cluster
from gangline.spec.config import RunConfig
from gangline.spec.event import Decision
from harness import RESULTS
from paced_worker import Part, Task
from teams import Team

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gangline.planning.allocation.bounds import Floats, Shares
    from gangline.spec.event import AnyEvent

WORKER = [sys.executable, str(Path(__file__).with_name("paced_worker.py"))]
START_TIMEOUT_S = 180.0
TIMEOUT_S = 120.0
WARM_UP_STEPS = 1
SOLO_FACTORS = (0.25, 1.0, 1.5)
"""What a worker is measured alone with, relative to its part by speed."""


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to train, and what joins the workers."""

    model: str
    global_batch: int
    allocation: str = "balanced"
    kind: str = "gangline"


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that a job took."""

    first: int
    """The number of the first of them."""
    seconds: float
    """All of them together, by the slowest worker's watch."""
    walls_s: list[float]
    """Each of them, by the median of the workers' watches."""
    shares: list[tuple[int, ...]]
    """Each step's share of each worker."""
    main_cpu_s: list[list[float]]
    """Of each worker, per step: the main thread's CPU time for data, computing and update."""
    thread_cpu_s: list[dict[str, float]]
    """Of each worker, per step: the CPU time of each thread."""

    @property
    def count(self) -> int:
        """How many steps these are."""
        return len(self.walls_s)


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What each worker takes alone: fixed_s + per_sample_s·n, and the same of its CPU time."""

    fixed_s: list[float]
    per_sample_s: list[float]
    fixed_cpu_s: list[float]
    per_sample_cpu_s: list[float]
    greatest_error: float
    """The largest relative distance of a measured median from the line."""

    def predict_s(self, shares: Shares | Sequence[int]) -> Floats:
        """What each worker takes for its share."""
        return np.asarray(self.fixed_s) + np.asarray(self.per_sample_s) * np.asarray(shares)

    def step_s(self, shares: Sequence[int]) -> float:
        """What a step takes with these shares, if it is nothing but computing."""
        return slowest_s(shares, self.fixed_s, self.per_sample_s)

    def best_shares(self, global_batch: int) -> list[int]:
        """The shares with which it takes least."""
        return balanced(global_batch, self.fixed_s, self.per_sample_s).tolist()

    def optimum_s(self, global_batch: int) -> float:
        """T*: the least time in which these workers can compute the global batch."""
        return self.step_s(self.best_shares(global_batch))


class SoloTimes(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's passes alone: by number of samples, seconds of each pass."""

    wall_s: dict[int, list[float]]
    cpu_s: dict[int, list[float]]

    def joined(self, other: SoloTimes) -> SoloTimes:
        """The passes of both."""

        def both(first: dict[int, list[float]], second: dict[int, list[float]]) -> Any:
            sizes = sorted({*first, *second})
            return {n: first.get(n, []) + second.get(n, []) for n in sizes}

        return SoloTimes(
            wall_s=both(self.wall_s, other.wall_s), cpu_s=both(self.cpu_s, other.cpu_s)
        )


class PacedTeam:
    """The worker processes of an emulated cluster."""

    def __init__(self, speeds: Sequence[float]) -> None:
        self.speeds = tuple(speeds)
        parts = [Part(rank=rank, speed=speed) for rank, speed in enumerate(speeds)]
        self.team = Team(WORKER, environments=[part.environment() for part in parts])

    def measure_alone(
        self, model: str, *, rank: int, samples: Sequence[int], steps: int
    ) -> SoloTimes:
        """Passes of one worker while the others sleep, without the first ones."""
        wall_s, cpu_s = {}, {}
        for size in samples:
            request = {"do": "solo", "rank": rank, "model": model, "samples": size}
            request["steps"] = steps + WARM_UP_STEPS
            answer = self.team.ask(request, timeout_s=START_TIMEOUT_S)[rank]
            wall_s[size] = answer["wall_s"][WARM_UP_STEPS:]
            cpu_s[size] = answer["cpu_s"][WARM_UP_STEPS:]
        return SoloTimes(wall_s=wall_s, cpu_s=cpu_s)

    def set_speed(self, rank: int, speed: float) -> None:
        """Paces one worker to another speed from its next step on."""
        self.team.ask({"do": "speed", "rank": rank, "speed": speed}, timeout_s=START_TIMEOUT_S)

    def set_speeds(self, speeds: Sequence[float]) -> None:
        """Makes another cluster of the same processes."""
        for rank, speed in enumerate(speeds):
            self.set_speed(rank, speed)
        self.speeds = tuple(speeds)

    @contextlib.contextmanager
    def job(self, options: JobOptions) -> Iterator[RunningJob]:
        """A job of all workers, which have joined it; they leave it in the end."""
        with contextlib.ExitStack() as stack:
            prefix = f"gangline-bench-{options.allocation}-"
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))
            launches: list[dict[str, str]] = []
            if options.kind == "gangline":
                # Speed 1: the workers pace themselves, here as with DDP.
                job = Job(
                    config=RunConfig(
                        run="bench", cluster=Cluster.of_speeds((1.0,) * len(self.speeds))
                    ),
                    run_dir=folder,
                    script=Path(WORKER[-1]),
                )
                stack.enter_context(coordinator_process(job, os.environ))
                launches = [launch.to_environment() for launch in job.launches()]
            task = Task(
                kind=options.kind,
                model=options.model,
                global_batch=options.global_batch,
                allocation=options.allocation,
                folder=str(folder),
                launches=launches,
                workers=len(self.speeds),
            )
            request = {"do": "join", "task": msgspec.to_builtins(task)}
            self.team.ask(request, timeout_s=START_TIMEOUT_S)
            running = RunningJob(self, folder=folder)
            yield running
            running.leave()

    def __enter__(self) -> PacedTeam:
        return self

    def __exit__(self, *_: object) -> None:
        self.team.close()


class RunningJob:
    """A job that its workers have joined."""

    def __init__(self, team: PacedTeam, *, folder: Path) -> None:
        self._team = team
        self._folder = folder
        self._has_left = False
        self.num_taken = 0

    def take(self, count: int) -> Taken:
        """Some more steps; raises TeamError where somebody is put out, who cannot make them."""
        answers = self._team.team.ask(
            {"do": "steps", "steps": count},
            timeout_s=TIMEOUT_S,
            find_hindrance=lambda: find_put_out(self.events()),
        )
        taken = Taken(
            first=self.num_taken,
            seconds=max(answer["seconds"] for answer in answers),
            walls_s=np.median([answer["walls_s"] for answer in answers], axis=0).tolist(),
            shares=list(zip(*(answer["samples"] for answer in answers), strict=True)),
            main_cpu_s=[answer["main_cpu_s"] for answer in answers],
            thread_cpu_s=[answer["thread_cpu_s"] for answer in answers],
        )
        self.num_taken += count
        return taken

    def coordinator_cpu_s(self) -> float:
        """CPU seconds that the job's coordinator has used so far."""
        used = 0.0
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if str(self._folder) in child.cmdline():
                    times = child.cpu_times()
                    used += times.user + times.system
        return used

    def leave(self) -> None:
        """All workers leave; after this the event log is complete."""
        if not self._has_left:
            self._has_left = True
            self._team.team.ask({"do": "leave"}, timeout_s=TIMEOUT_S)

    def events(self) -> list[AnyEvent]:
        """What the workers and the coordinator logged."""
        return list(read_run(self._folder))


def find_put_out(events: Iterable[AnyEvent]) -> str | None:
    """Why not everybody trains any more; None where everybody does."""
    out: dict[int, str] = {}
    for event in events:
        if isinstance(event, Decision) and event.what == "exclude":
            out[int(event.numbers["worker"])] = event.reason
        elif isinstance(event, Decision) and event.what == "take_back":
            out.pop(int(event.numbers["worker"]), None)
    if not out:
        return None
    worker, reason = min(out.items())
    return (
        f"worker {worker} was put out ({reason}): what is measured here is how all workers train; "
        "give it more speed, or take a larger global batch"
    )


def solo_sizes(speeds: Sequence[float], global_batch: int) -> list[list[int]]:
    """How many samples to measure each worker with: around its part by speed."""
    parts = [global_batch * speed / sum(speeds) for speed in speeds]
    return [sorted({max(1, round(part * f)) for f in SOLO_FACTORS}) for part in parts]


def measure_cluster(
    team: PacedTeam, model: str, *, global_batch: int, steps: int
) -> list[SoloTimes]:
    """Each worker alone, with several numbers of samples."""
    return [
        team.measure_alone(model, rank=rank, samples=sizes, steps=steps)
        for rank, sizes in enumerate(solo_sizes(team.speeds, global_batch))
    ]


def fit(times: Sequence[SoloTimes]) -> Costs:
    """a + b·n of each worker, by least squares of relative errors over the medians for each n."""
    walls = [fit_line(one.wall_s) for one in times]
    cpus = [fit_line(one.cpu_s) for one in times]
    return Costs(
        fixed_s=[line[0] for line in walls],
        per_sample_s=[line[1] for line in walls],
        fixed_cpu_s=[line[0] for line in cpus],
        per_sample_cpu_s=[line[1] for line in cpus],
        greatest_error=max(line[2] for line in walls),
    )


def fit_line(times: Mapping[int, Sequence[float]]) -> tuple[float, float, float]:
    """a, b, and the largest relative error."""
    n = np.array(list(times), dtype=np.float64)
    t = np.array([np.median(values) for values in times.values()])
    (a, b), *_ = np.linalg.lstsq(np.stack([1 / t, n / t], axis=1), np.ones_like(t), rcond=None)
    if a < 0 or b <= 0:  # too few samples to tell the two apart
        a, b = 0.0, float(np.sum(n / t) / np.sum((n / t) ** 2))
    return float(a), float(b), float(np.abs((a + b * n) / t - 1).max())


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def write_results(name: str, markdown: str, data: object) -> None:
    """Writes `name.md` and `name.json` among the results, and prints the former."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.md").write_text(markdown, encoding="utf-8")
    (RESULTS / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(data)))
    print(markdown, flush=True)
