# SPDX-License-Identifier: Apache-2.0
"""A worker is throttled to a third in the middle of a run, and recovers: how soon do shares follow?

    python benchmarks/throttle.py                     # about two minutes on 2 cores

Once with real, paced workers, and many times in the simulator. A cut is good when a step of the
workers as they are now takes at most 10 % longer with it than with the best one; by the model
a + b·n, so that noise does not blur it. For real workers a and b are measured alone, and both are
then multiplied with how much longer the worker took in the second half of the phase.

What cannot be avoided is the detection window: a change is one when so many observations in a row
say so (`control.speeds.WINDOW`), and the shares that follow from it hold from a step that all
workers agree on. Under plain noise, no cut should change.
"""

from __future__ import annotations

import argparse
import os
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.control import ControlOptions
from gangline.control.shares.speeds import WINDOW
from gangline.simulation import Scenario, simulate
from gangline.simulation.scenario import SimulatedNode, Throttle
from gangline.spec.event import Decision, StepDone
from harness import machine_facts
from paced_teams import (
    Costs,
    JobOptions,
    PacedTeam,
    fit,
    measure_cluster,
    solo_sizes,
    table,
    write_results,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.spec.event import AnyEvent
    from paced_teams import RunningJob, Taken

MODEL = "lenet5"
SPEEDS = (1.0, 0.5, 0.2, 0.1)
FACTOR = 3.0
GOOD = 1.10
SOLO_STEPS = 3
CHUNK = 20
SETTLING_STEPS = 60
SIMULATED_STEPS = 400
"""Of each simulated run with a throttle: it comes after 150 steps and goes after 280."""
THROTTLED = (150, 280)
NOISE_STEPS = 1000
NOISE_SEEDS = 10


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one change of speed."""

    name: str
    steps: int
    """How long the phase lasted."""
    steps_to_adapt: int | None
    """Steps that were cut badly, from the change on; None: it never became good."""
    beyond_window: int | None
    """The same without the detection window."""
    alone_s: float
    """T* of the workers as they were measured alone."""
    optimum_s: float
    """T* of the workers as they are in this phase."""
    first_step_s: float
    """The median of the first three steps."""
    last_step_s: float
    """The median of the second half of the phase."""
    recuts: int
    """Changes of the shares."""
    shares: list[int]
    """Those of the last step."""


class RealRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of real processes."""

    costs: Costs
    throttled_costs: Costs
    cold_start: Phase
    noise: Phase
    throttled: Phase
    recovered: Phase
    decisions: list[str]
    """What the coordinator decided, in its words."""

    @property
    def phases(self) -> list[Phase]:
        """All, in order."""
        return [self.cold_start, self.noise, self.throttled, self.recovered]


class SimulatedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Many runs of the simulator, with one noise."""

    noise: float
    seeds: int
    to_throttle: list[int | None]
    """Of each seed, the steps to adapt to the throttle."""
    to_recover: list[int | None]
    recuts_per_1000_steps: float
    """Under plain noise, after the first 100 steps."""


def real_run(options: argparse.Namespace) -> RealRun:
    """Cold start, plain noise, throttle, recovery."""
    speeds = [speed * options.scale for speed in SPEEDS]
    worker, batch = options.worker, options.global_batch
    with PacedTeam(speeds) as team:
        costs, slowed = measure_costs(team, global_batch=batch, worker=worker)
        with team.job(JobOptions(model=MODEL, global_batch=batch)) as job:
            cold = take(job, SETTLING_STEPS)
            noise = take(job, options.noise_steps)
            team.set_speed(worker, speeds[worker] / FACTOR)
            throttled = take(job, options.steps)
            team.set_speed(worker, speeds[worker])
            recovered = take(job, options.steps)
            job.leave()
            events = job.events()

    def judge(name: str, taken: list[Taken], alone: Costs) -> Phase:
        return phase(name, taken, alone=alone, events=events)

    return RealRun(
        costs=costs,
        throttled_costs=slowed,
        cold_start=judge("cold start", cold, costs),
        noise=judge("plain noise", noise, costs),
        throttled=judge("throttled to a third", throttled, slowed),
        recovered=judge("recovered", recovered, costs),
        decisions=[event.reason for event in events if isinstance(event, Decision)],
    )


def measure_costs(team: PacedTeam, *, global_batch: int, worker: int) -> tuple[Costs, Costs]:
    """What the workers take alone: as they are, and with one of them throttled."""
    solo = measure_cluster(team, MODEL, global_batch=global_batch, steps=SOLO_STEPS)
    sizes = solo_sizes(team.speeds, global_batch)[worker]
    team.set_speed(worker, team.speeds[worker] / FACTOR)
    slow = team.measure_alone(MODEL, rank=worker, samples=sizes, steps=SOLO_STEPS)
    team.set_speed(worker, team.speeds[worker])
    return fit(solo), fit([slow if rank == worker else one for rank, one in enumerate(solo)])


def take(job: RunningJob, steps: int) -> list[Taken]:
    """Steps in portions, so that no request lasts long."""
    return [job.take(min(CHUNK, steps - done)) for done in range(0, steps, CHUNK)]


def phase(name: str, taken: Sequence[Taken], *, alone: Costs, events: Sequence[AnyEvent]) -> Phase:
    """What came of a change after which the workers cost this much alone."""
    shares = [row for part in taken for row in part.shares]
    walls_s = [wall for part in taken for wall in part.walls_s]
    first, half, batch = taken[0].first, len(shares) // 2, sum(shares[0])
    costs = as_they_are(alone, events, range(first + half, first + len(shares)))
    optimum_s = costs.optimum_s(batch)
    bad = bad_steps([costs.step_s(row) / optimum_s for row in shares])
    return Phase(
        name=name,
        steps=len(shares),
        steps_to_adapt=bad,
        beyond_window=None if bad is None else max(0, bad - WINDOW),
        alone_s=alone.optimum_s(batch),
        optimum_s=optimum_s,
        first_step_s=float(np.median(walls_s[:3])),
        last_step_s=float(np.median(walls_s[half:])),
        recuts=sum(before != after for before, after in pairwise(shares)),
        shares=list(shares[-1]),
    )


def as_they_are(alone: Costs, events: Sequence[AnyEvent], steps: range) -> Costs:
    """The costs measured alone, times how much longer each worker took in these steps."""
    ratios: dict[int, list[float]] = {}
    for event in events:
        if isinstance(event, StepDone) and event.step in steps and event.samples > 0:
            cost_s = alone.fixed_s[event.worker] + alone.per_sample_s[event.worker] * event.samples
            ratios.setdefault(event.worker, []).append(event.compute_s / cost_s)
    factors = [float(np.median(ratios[worker])) for worker in range(len(alone.fixed_s))]
    return msgspec.structs.replace(
        alone,
        fixed_s=[a * factor for a, factor in zip(alone.fixed_s, factors, strict=True)],
        per_sample_s=[b * factor for b, factor in zip(alone.per_sample_s, factors, strict=True)],
    )


def bad_steps(ratios: Sequence[float]) -> int | None:
    """How many steps come before the cut is good; None where it never is."""
    return next((step for step, ratio in enumerate(ratios) if ratio <= GOOD), None)


# The simulator


def simulated_runs(costs: Costs, options: argparse.Namespace, *, noise: float) -> SimulatedRuns:
    """The same scenario with the same costs and many seeds, and plain noise."""
    adapted = [simulate_throttle(costs, options, noise=noise, seed=s) for s in range(options.seeds)]
    recuts = [recuts_in_noise(costs, options, noise=noise, seed=s) for s in range(NOISE_SEEDS)]
    return SimulatedRuns(
        noise=noise,
        seeds=options.seeds,
        to_throttle=[down for down, _ in adapted],
        to_recover=[up for _, up in adapted],
        recuts_per_1000_steps=float(np.mean(recuts)),
    )


def scenario(costs: Costs, *, noise: float, throttled: int | None) -> Scenario:
    """The workers that were measured; one of them throttled, or none."""
    throttle = Throttle(from_step=THROTTLED[0], to_step=THROTTLED[1], factor=FACTOR)
    return Scenario(
        nodes=tuple(
            SimulatedNode(
                name=f"worker {rank}",
                fixed_s=a,
                per_sample_s=b,
                throttles=(throttle,) if rank == throttled else (),
            )
            for rank, (a, b) in enumerate(zip(costs.fixed_s, costs.per_sample_s, strict=True))
        ),
        noise=noise,
        first_step_factors=(5.0, 2.0),
    )


def simulate_throttle(
    costs: Costs, options: argparse.Namespace, *, noise: float, seed: int
) -> tuple[int | None, int | None]:
    """Steps to adapt to the throttle, and to the recovery."""
    run = simulate(
        scenario(costs, noise=noise, throttled=options.worker),
        options=ControlOptions(global_batch=options.global_batch),
        steps=SIMULATED_STEPS,
        seed=seed,
    )
    ratios = [step.model_s / step.optimum_s for step in run.history]
    begin, end = THROTTLED
    return bad_steps(ratios[begin:end]), bad_steps(ratios[end:])


def recuts_in_noise(costs: Costs, options: argparse.Namespace, *, noise: float, seed: int) -> int:
    """Changes of the shares in a thousand steps in which nothing happens, after 100 to settle."""
    run = simulate(
        scenario(costs, noise=noise, throttled=None),
        options=ControlOptions(global_batch=options.global_batch),
        steps=NOISE_STEPS + 100,
        seed=seed,
    )
    return run.history[-1].view - run.history[100].view


# The report


def describe_real(run: RealRun) -> str:
    """The real run as Markdown."""
    rows = [
        [
            phase.name,
            phase.steps,
            "never" if phase.steps_to_adapt is None else phase.steps_to_adapt,
            "never" if phase.beyond_window is None else phase.beyond_window,
            f"{phase.alone_s * 1e3:.1f}",
            f"{phase.optimum_s * 1e3:.1f}",
            f"{phase.first_step_s * 1e3:.1f}",
            f"{phase.last_step_s * 1e3:.1f}",
            phase.recuts,
            phase.shares,
        ]
        for phase in run.phases
    ]
    headings = ["phase", "steps", "steps to adapt", "beyond the window", "T* alone (ms)"]
    headings += ["T* in the run (ms)"]
    headings += ["first steps (ms)", "settled steps (ms)", "re-cuts", "shares"]
    decisions = "\n".join(f"- {reason}" for reason in run.decisions)
    return f"{table(headings, rows)}\n\nWhat was decided:\n\n{decisions}"


def describe_simulated(runs: Sequence[SimulatedRuns]) -> str:
    """All noises as Markdown."""
    rows = [
        [
            f"{run.noise:.0%}",
            run.seeds,
            spread(run.to_throttle),
            spread(run.to_recover),
            f"{within(run.to_throttle):.0%}, {within(run.to_recover):.0%}",
            f"{run.recuts_per_1000_steps:.2f}",
        ]
        for run in runs
    ]
    headings = ["noise", "seeds", "steps to adapt to the throttle", "to the recovery"]
    headings += ["at most 5 beyond the window", "re-cuts per 1,000 noisy steps"]
    return table(headings, rows)


def spread(steps: Sequence[int | None]) -> str:
    """Median, 95th percentile and the most; a run that never adapts counts as infinite."""
    values = np.array([np.inf if step is None else step for step in steps])
    median, most = np.median(values), values.max()
    high = np.percentile(values, 95, method="higher")
    return f"median {median:g}, 95 % {high:g}, most {most:g}"


def within(steps: Sequence[int | None]) -> float:
    """The fraction that adapted within the window and five steps."""
    return float(np.mean([step is not None and step <= WINDOW + 5 for step in steps]))


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--scale", type=float, default=0.4 if cores < 8 else 1.0)
    parser.add_argument("--global-batch", type=int, default=512)
    parser.add_argument("--worker", type=int, default=0, help="who is throttled")
    parser.add_argument("--steps", type=int, default=60, help="of each phase after a change")
    parser.add_argument("--noise-steps", type=int, default=200, help="in which nothing happens")
    parser.add_argument("--seeds", type=int, default=50, help="simulated runs for each noise")
    parser.add_argument("--noises", type=float, nargs="+", default=[0.05, 0.13])
    parser.add_argument("--name", default="throttle", help="of the files in benchmarks/results")
    return parser.parse_args()


def main() -> None:
    """Runs the scenario for real and in the simulator, and writes and prints the results."""
    options = parse_options()
    machine = machine_facts()
    real = real_run(options)
    simulated = [simulated_runs(real.costs, options, noise=noise) for noise in options.noises]
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    markdown = "\n\n".join(
        [
            f"# Worker {options.worker} is throttled to a third, and recovers",
            f"LeNet-5, global batch {options.global_batch}, speeds 1 : 0.5 : 0.2 : 0.1 times "
            f"{options.scale:g}. Steps to adapt: those from the change on that are cut so badly that "
            f"the workers as they are now need over {GOOD - 1:.0%} more than T*. The detection "
            f"window is {WINDOW} steps.",
            f"## Real workers\n\n{describe_real(real)}",
            "## Simulated, with the same costs; shares hold two steps after the one that led to "
            f"them\n\n{describe_simulated(simulated)}",
            f"Machine: {facts}.",
        ]
    )
    write_results(
        options.name, markdown + "\n", {"real": real, "simulated": simulated, "machine": machine}
    )


if __name__ == "__main__":
    main()
