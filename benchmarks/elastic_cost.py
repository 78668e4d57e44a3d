# SPDX-License-Identifier: Apache-2.0
"""What elasticity costs a worker that nothing happens to: CPU time per step, and of a core.

    python benchmarks/elastic_cost.py              # about 4 minutes
    python benchmarks/elastic_cost.py --short      # less than one

Equal workers, paced so that they fit the cores, train LeNet-5 and a model of 12.8 million parameters.
Measured directly: the CPU time of the threads that talk with the coordinator (heartbeats included),
and of the calls that each step makes for nothing else: the snapshot, and telling the coordinator and
the event log. As a check, teams with and without these calls take turns, and the CPU time of the whole
worker per step is compared: what elasticity costs must vanish in it.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from cost_worker import MODE_VARIABLE
from harness import Comparison, compare
from losses import CONTROL_THREADS
from paced_teams import JobOptions, PacedTeam, RunningJob, Taken, table, write_results
from paced_worker import Part
from teams import Team
from tormented_jobs import exit_on_sigterm, paced_speed

if TYPE_CHECKING:
    from collections.abc import Sequence

MODELS = {"lenet5": 256, "wide_mlp": 128}
"""The global batch of each."""
LIMIT = 0.01
"""Of a core."""
SETTLING_STEPS = 40
TIMEOUT_S = 120.0
WORKER = [sys.executable, str(Path(__file__).with_name("cost_worker.py"))]


class CostTeam(PacedTeam):
    """Workers with elasticity `on`, `off`, or `timed`."""

    def __init__(self, speeds: Sequence[float], *, mode: str) -> None:
        self.speeds = tuple(speeds)
        parts = [Part(rank=rank, speed=speed) for rank, speed in enumerate(speeds)]
        environments = [{**part.environment(), MODE_VARIABLE: mode} for part in parts]
        self.team = Team(WORKER, environments=environments)

    def calls_s(self) -> dict[str, float]:
        """CPU seconds of each timed call since the last time, of all workers together."""
        answers = self.team.ask({"do": "calls"}, timeout_s=TIMEOUT_S)
        return {name: sum(answer[name] for answer in answers) for name in answers[0]}


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What a step costs one worker, in CPU seconds: means over the workers."""

    model: str
    workers: int
    steps: int
    step_s: float
    control_s: float
    """The threads that talk with the coordinator."""
    heartbeat_s: float
    """The same threads where steps tell nothing: heartbeats alone."""
    snapshot_s: float
    telling_s: float
    """Handing the step's report to the control thread and to the event log."""
    coordinator_s: float
    """The coordinator's process, for all workers; it is not in the sum."""
    comparison: Comparison
    """CPU time of a whole worker per step: with elasticity, and without."""

    @property
    def total_s(self) -> float:
        """All that a worker does only to survive faults."""
        return self.control_s + self.snapshot_s + self.telling_s

    @property
    def of_a_core(self) -> float:
        """The part of a core that it takes."""
        return self.total_s / self.step_s

    @property
    def at_full_speed(self) -> float:
        """The same if the worker did not sleep: steps as short as their CPU time."""
        per_step_s = self.total_s - self.heartbeat_s
        return per_step_s / self.comparison.row("on").median_s + self.heartbeat_s / self.step_s


def take_cpu_s(job: RunningJob, steps: int) -> float:
    """Takes steps; CPU seconds per step of one worker, all its threads."""
    taken = job.take(steps)
    return float(np.mean([sum(threads.values()) for threads in taken.thread_cpu_s]))


def control_s(taken: Taken) -> float:
    """CPU seconds per step of one worker's control threads."""
    used = [
        sum(s for name, s in threads.items() if any(one in name for one in CONTROL_THREADS))
        for threads in taken.thread_cpu_s
    ]
    return float(np.mean(used))


def measure(model: str, *, workers: int, steps: int, repeats: int) -> Cost:
    """Teams that take turns on one model."""
    speeds = [paced_speed(workers)] * workers
    options = JobOptions(model=model, global_batch=MODELS[model], allocation="equal")
    modes = {"off": "off", "off again": "off", "on": "on", "timed": "timed"}
    with contextlib.ExitStack() as stack:
        teams = {
            name: stack.enter_context(CostTeam(speeds, mode=mode)) for name, mode in modes.items()
        }
        jobs = {name: stack.enter_context(team.job(options)) for name, team in teams.items()}
        for job in jobs.values():
            job.take(SETTLING_STEPS)
        comparison = compare(
            {name: partial(take_cpu_s, jobs[name], steps) for name in ("off", "on")},
            baseline="off",
            twin=partial(take_cpu_s, jobs["off again"], steps),
            repeats=repeats,
        )
        return _conclude(jobs, teams, model=model, steps=steps * repeats, comparison=comparison)


def _conclude(
    jobs: dict[str, RunningJob],
    teams: dict[str, CostTeam],
    *,
    model: str,
    steps: int,
    comparison: Comparison,
) -> Cost:
    teams["timed"].calls_s()
    before_s = jobs["timed"].coordinator_cpu_s()
    taken = jobs["timed"].take(steps)
    coordinator_s = jobs["timed"].coordinator_cpu_s() - before_s
    workers = len(teams["timed"].speeds)
    calls = {name: s / steps / workers for name, s in teams["timed"].calls_s().items()}
    return Cost(
        model=model,
        workers=workers,
        steps=steps,
        step_s=taken.seconds / steps,
        control_s=control_s(taken),
        heartbeat_s=control_s(jobs["off"].take(steps)),
        snapshot_s=calls["snapshot"],
        telling_s=calls["telling"],
        coordinator_s=coordinator_s / steps,
        comparison=comparison,
    )


def describe(found: Sequence[Cost]) -> str:
    """All of it as Markdown."""
    headings = ["model", "workers", "steps", "step", "control threads", "of them heartbeats"]
    headings += ["snapshot", "telling", "together", "of a core", "limit"]
    headings += ["at full speed", "coordinator"]
    parts = [
        "# elastic_cost",
        "CPU time per step and worker, means. `of a core`: together over the time of a step, in "
        "which a paced worker sleeps; `at full speed`: if it did not. The coordinator's time is that "
        "of all workers, and not in the sum.",
        table(headings, [_row(cost) for cost in found]),
        "As a check, CPU time of a whole worker per step, with elasticity and without (no snapshot, "
        "nothing told). A speed-up below 1 is what elasticity costs.",
    ]
    for cost in found:
        parts += [f"## {cost.model}", cost.comparison.to_markdown()]
    return "\n\n".join(parts) + "\n"


def _row(cost: Cost) -> list[str]:
    times = (cost.control_s, cost.heartbeat_s, cost.snapshot_s, cost.telling_s, cost.total_s)
    return [
        cost.model,
        str(cost.workers),
        str(cost.steps),
        f"{cost.step_s * 1e3:.1f} ms",
        *(f"{s * 1e6:.0f} µs" for s in times),
        f"{cost.of_a_core:.2%}",
        f"{LIMIT:.0%} {'met' if cost.of_a_core <= LIMIT else 'MISSED'}",
        f"{cost.at_full_speed:.2%}",
        f"{cost.coordinator_s * 1e6:.0f} µs",
    ]


def main() -> None:
    """Measures, prints, and saves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20, help="of one measurement")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--short", action="store_true", help="LeNet-5 alone, 3 repeats")
    parser.add_argument("--name", default="elastic_cost", help="of the files in results/")
    options = parser.parse_args()
    exit_on_sigterm()
    if options.short:
        options.models, options.repeats = ["lenet5"], 3
    found = []
    for model in options.models:
        cost = measure(model, workers=options.workers, steps=options.steps, repeats=options.repeats)
        found.append(cost)
        print(" | ".join(_row(cost)), flush=True)
    write_results(options.name, describe(found), {"models": found})


if __name__ == "__main__":
    main()
