# SPDX-License-Identifier: Apache-2.0
"""Uneven workers: how near a step comes to the compute-only optimum, and what the rest is lost to.

    python benchmarks/uneven.py                    # about four minutes on 2 cores
    python benchmarks/uneven.py --scale 1.0        # where there are cores enough (16)

LeNet-5 on MNIST shapes, four workers of speeds 1 : 0.5 : 0.2 : 0.1, all times the scale. First each
worker is measured alone: a + b·n. From that follows T*, the least time in which these workers could
compute the global batch if exchanging cost nothing. Then gangline with each allocation, and plain
DDP over gloo with equal shares and the same pacer, take turns. Efficiency is T* over the step time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.planning.allocation.proportional import drawn
from harness import Comparison, Interval, compare, paired_speedup
from losses import Losses, OwnCpu, count_own_cpu, find_losses
from paced_teams import (
    Costs,
    JobOptions,
    PacedTeam,
    RunningJob,
    SoloTimes,
    Taken,
    fit,
    measure_cluster,
    table,
    write_results,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

MODEL = "lenet5"
SPEEDS = (1.0, 0.5, 0.2, 0.1)
BASELINE = "ddp"
POLICIES = ("balanced", "equal", "random", "kqv")
SOLO_STEPS = 3
SETTLING_STEPS = 30
GREATEST_SETTLING = 8
"""So many times `SETTLING_STEPS` are waited for the shares to stay as they are."""
MEASURED_S, LEAST_STEPS, GREATEST_STEPS = 0.6, 2, 24
"""How long one measurement should last, and its fewest and most steps."""
LEAST_BLOCKS, GREATEST_BLOCKS = 3, 12
RANDOM_DRAWS = 2000


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one global batch."""

    global_batch: int
    speeds: list[float]
    solo: list[SoloTimes]
    costs: Costs
    optimum_s: float
    """T*"""
    best_shares: list[int]
    settled_shares: dict[str, list[int]]
    settled_after: int
    """Steps that `balanced` took from the cold start until its shares stayed."""
    samples_per_step: dict[str, float]
    comparison: Comparison
    efficiencies: dict[str, Interval]
    random_efficiency: float
    """What the model expects of `random` over many draws; the measured one is of a draw or two."""
    losses: Losses
    own_cpu: OwnCpu


class Contestant:
    """A running job, measured a few steps at a time."""

    def __init__(self, job: RunningJob) -> None:
        self.job = job
        self.steps = LEAST_STEPS
        self.measured: list[Taken] = []

    def settle(self) -> int:
        """Steps until the shares stay as they are; returns how many it took."""
        before = self.job.take(SETTLING_STEPS)
        for _ in range(GREATEST_SETTLING):
            after = self.job.take(SETTLING_STEPS)
            if len({before.shares[-1], *after.shares}) == 1:
                break
            before = after
        self._choose_steps(after)
        return self.job.num_taken - SETTLING_STEPS

    def warm_up(self) -> None:
        """A few steps, to see how many are to be measured at once."""
        self._choose_steps(self.job.take(LEAST_STEPS + 1))

    def _choose_steps(self, taken: Taken) -> None:
        step_s = float(np.median(taken.walls_s))
        self.steps = int(np.clip(MEASURED_S / step_s, LEAST_STEPS, GREATEST_STEPS))
        self.expected_s = self.steps * step_s

    def measure(self) -> float:
        """Seconds per step."""
        taken = self.job.take(self.steps)
        self.measured.append(taken)
        return taken.seconds / taken.count

    @property
    def shares(self) -> list[int]:
        """Those of the last step."""
        return list(self.measured[-1].shares[-1])

    @property
    def samples_per_step(self) -> float:
        """The mean over what was measured."""
        return float(np.mean([sum(shares) for t in self.measured for shares in t.shares]))


def run_batch(
    teams: dict[str, PacedTeam], global_batch: int, *, seconds: float, seed: int
) -> Outcome:
    """Measures one global batch, within about so many seconds."""
    deadline = time.monotonic() + seconds
    began = time.monotonic()
    solo = measure_cluster(teams["balanced"], MODEL, global_batch=global_batch, steps=SOLO_STEPS)
    solo_s = time.monotonic() - began
    with contextlib.ExitStack() as stack:
        racers = {
            name: Contestant(
                stack.enter_context(team.job(options_of(name, global_batch=global_batch)))
            )
            for name, team in teams.items()
        }
        settled_after = racers["balanced"].settle()
        for name in teams:
            if name != "balanced":
                racers[name].warm_up()
        comparison = race(racers, seconds=deadline - time.monotonic() - solo_s, seed=seed)
        own = racers["balanced"]
        coordinator_s = own.job.coordinator_cpu_s() / own.job.num_taken
        own.job.leave()
        events = own.job.events()
    again = measure_cluster(teams["balanced"], MODEL, global_batch=global_batch, steps=SOLO_STEPS)
    solo = [first.joined(second) for first, second in zip(solo, again, strict=True)]
    costs = fit(solo)
    optimum_s = costs.optimum_s(global_batch)
    return Outcome(
        global_batch=global_batch,
        speeds=list(teams["balanced"].speeds),
        solo=solo,
        costs=costs,
        optimum_s=optimum_s,
        best_shares=costs.best_shares(global_batch),
        settled_shares={name: racer.shares for name, racer in racers.items()},
        settled_after=settled_after,
        samples_per_step={name: racer.samples_per_step for name, racer in racers.items()},
        comparison=comparison,
        efficiencies={
            row.name: paired_speedup([optimum_s] * len(row.samples_s), row.samples_s)
            for row in comparison.rows
        },
        random_efficiency=expect_random(costs, global_batch),
        losses=find_losses(events, own.measured, costs=costs, global_batch=global_batch),
        own_cpu=count_own_cpu(own.measured, costs=costs, coordinator_s=coordinator_s),
    )


def options_of(name: str, *, global_batch: int) -> JobOptions:
    """The job of a contender."""
    if name == BASELINE:
        return JobOptions(model=MODEL, global_batch=global_batch, kind="ddp", allocation="equal")
    return JobOptions(model=MODEL, global_batch=global_batch, allocation=name)


def race(racers: dict[str, Contestant], *, seconds: float, seed: int) -> Comparison:
    """As many blocks as fit into the time; a block has two runs of each, and of the baseline four."""
    run_s = sum(racer.expected_s for racer in racers.values()) + racers[BASELINE].expected_s
    blocks = int(np.clip((seconds - run_s) / (2 * run_s), LEAST_BLOCKS, GREATEST_BLOCKS))
    return compare(
        {name: racer.measure for name, racer in racers.items()},
        baseline=BASELINE,
        repeats=blocks,
        seed=seed,
    )


def expect_random(costs: Costs, global_batch: int) -> float:
    """The efficiency of random shares under the model: T* over the mean step time of many draws."""
    rng = np.random.default_rng(0)
    count = len(costs.fixed_s)
    times = [costs.step_s(drawn(global_batch, count, rng=rng)) for _ in range(RANDOM_DRAWS)]
    return costs.optimum_s(global_batch) / float(np.mean(times))


def describe(outcome: Outcome) -> str:
    """One global batch as Markdown."""
    costs, batch = outcome.costs, outcome.global_batch
    alone = table(
        ["worker", "speed", "alone: a (ms)", "b (ms per sample)", "share at T*", "`balanced` gave"],
        [
            [rank, f"{speed:g}", f"{a * 1e3:.2f}", f"{b * 1e3:.4f}", best, given]
            for rank, (speed, a, b, best, given) in enumerate(
                zip(
                    outcome.speeds,
                    costs.fixed_s,
                    costs.per_sample_s,
                    outcome.best_shares,
                    outcome.settled_shares["balanced"],
                    strict=True,
                )
            )
        ],
    )
    names = [f"gangline {name}" if name in POLICIES else name for name in outcome.efficiencies]
    efficiency = table(
        ["contender", "efficiency T*/T [95 %]", "samples per step", "shares"],
        [
            [
                title,
                value,
                f"{outcome.samples_per_step.get(name, batch):.0f}",
                outcome.settled_shares.get(name, ""),
            ]
            for title, (name, value) in zip(names, outcome.efficiencies.items(), strict=True)
        ],
    )
    own_ms = outcome.comparison.row("balanced").median_s * 1e3
    return "\n\n".join(
        [
            f"## Global batch {batch}",
            f"T* = **{outcome.optimum_s * 1e3:.1f} ms** (the lines fit what was measured alone "
            f"within {costs.greatest_error:.0%}); `balanced` takes {own_ms:.1f} ms, an efficiency of "
            f"**{outcome.efficiencies['balanced'].median:.3f}** and "
            f"**{outcome.comparison.row('balanced').speedup}** times as fast as DDP. Its shares "
            f"stayed from step {outcome.settled_after} on at the latest.",
            alone,
            efficiency,
            f"`random` was measured with a draw or two; over {RANDOM_DRAWS} draws the model expects "
            f"an efficiency of {outcome.random_efficiency:.3f}. `kqv` computes another number of "
            "samples per step: its step time is not that of the same work.",
            outcome.comparison.to_markdown(),
            f"### What `balanced` loses\n\n{outcome.losses.to_markdown()}",
            f"### Our own CPU time\n\n{outcome.own_cpu.to_markdown()}",
        ]
    )


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--scale",
        type=float,
        default=0.4 if cores < 8 else 1.0,
        help="what the speeds are multiplied with (default: 0.4, or 1.0 on 8 cores and more)",
    )
    parser.add_argument("--batches", nargs="+", type=int, default=[256, 1024])
    parser.add_argument("--seconds", type=float, default=200.0, help="for all batches together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="uneven", help="of the files in benchmarks/results")
    return parser.parse_args()


def budgets(batches: Sequence[int], seconds: float) -> list[float]:
    """A larger batch takes longer, though not in proportion."""
    weights = np.sqrt(np.asarray(batches, dtype=np.float64))
    return (seconds * weights / weights.sum()).tolist()


def main() -> None:
    """Measures all global batches, and writes and prints the results."""
    options = parse_options()
    speeds = [speed * options.scale for speed in SPEEDS]
    outcomes = []
    with contextlib.ExitStack() as stack:
        teams = {name: stack.enter_context(PacedTeam(speeds)) for name in (BASELINE, *POLICIES)}
        for batch, seconds in zip(
            options.batches, budgets(options.batches, options.seconds), strict=True
        ):
            outcomes.append(run_batch(teams, batch, seconds=seconds, seed=options.seed))
            print(f"global batch {batch} is measured", flush=True)
    title = f"# Uneven workers: LeNet-5, speeds 1 : 0.5 : 0.2 : 0.1, scale {options.scale:g}"
    markdown = "\n\n".join([title, *(describe(outcome) for outcome in outcomes)]) + "\n"
    write_results(options.name, markdown, outcomes)


if __name__ == "__main__":
    main()
