# SPDX-License-Identifier: Apache-2.0
"""Parts that are pulled against shares: how much of four uneven machines is used.

    python benchmarks/self_scheduled.py                    # about 15 minutes
    python benchmarks/self_scheduled.py --steps 40 --seeds 1 --only steady

Four real workers with the speeds 1, 1, 0.5 and 0.5 sleep for as long as their samples would take
(`self_scheduled_worker.py`), so that a few cores are enough. But those must be free: what sleeping
takes longer than asked for, what the loop costs, and asking the coordinator count once for each part,
and a step that is pulled has several. What a part costs, and how long workers wait for one, is told.

Efficiency is what the steps would take if all ended together without a wait, divided by what they took:
the exchange, the questions to the coordinator and what each part costs by itself count against it. The
first steps are left out, in which shares find the speeds. Intervals of 95 % by resampling runs of ten
steps. The same cases are simulated: as they are meant, and with what parts and questions were measured
to cost.
"""

from __future__ import annotations

import argparse
import random
from typing import TYPE_CHECKING, Any

import numpy as np

from gangline.control import ControlOptions
from gangline.simulation import Course, Scenario, simulate
from gangline.simulation.scenario import SimulatedNode
from gangline.spec.faults import Fault, FaultPlan
from gangline.testing import run_workers
from harness import Interval
from journal import Journal, read_journal
from paced_teams import table
from self_scheduled_worker import Case, Step, train

if TYPE_CHECKING:
    from collections.abc import Sequence

SPEEDS = (1.0, 1.0, 0.5, 0.5)
CASES = {
    "steady": Case(SPEEDS),
    "noise of 30 %": Case(SPEEDS, noise=0.3),
    "one drops to a third": Case(SPEEDS, drop_every_s=10.0),
}
ALLOCATIONS = ("equal", "balanced", "self-scheduled", "self-scheduled(GSS)", "balanced+stolen")
BATCH = 192
WARM_UP = 30
RUN = 10
DEADLINE_S = 600.0


def measure(
    name: str, allocations: Sequence[str], *, steps: int, seeds: int, journal: Journal
) -> None:
    """Real workers, each allocation once for each seed, in an order of its own."""
    for seed in range(seeds):
        for allocation in random.Random(seed).sample(allocations, len(allocations)):
            arguments = (CASES[name], allocation, BATCH, steps, seed)
            told = run_workers(train, len(SPEEDS), args=arguments, deadline_s=DEADLINE_S)
            journal.add(case=name, allocation=allocation, seed=seed, workers=told)
            print(f"{name}, {allocation}, seed {seed}: done", flush=True)


def efficiency(runs: list[list[Step]]) -> Interval:
    """Of all steps behind the first ones, by the worker that tells."""
    blocks = [
        steps[at : at + RUN]
        for steps in runs
        for at in range(min(WARM_UP, len(steps) // 2), len(steps), RUN)
    ]
    sums = np.array([[sum(s[0] for s in some), sum(s[1] for s in some)] for some in blocks])
    picks = np.random.default_rng(0).integers(len(sums), size=(2000, len(sums)))
    found = sums[picks].sum(axis=1)
    low, high = np.quantile(found[:, 0] / found[:, 1], [0.025, 0.975])
    whole = sums.sum(axis=0)
    return Interval(median=float(whole[0] / whole[1]), low=float(low), high=float(high))


def lost_per_part(workers: list[list[Step]]) -> tuple[float, float, float]:
    """Seconds of a part beside its samples, and of a wait for one; and how many parts a step has."""
    steps = [Step(*step) for some in workers for step in some[WARM_UP:] or some]
    parts = sum(step.parts for step in steps)
    extra_s = sum(step.extra_s for step in steps) / max(1, parts - len(steps))
    asked_s = sum(step.asked_s for step in steps) / (parts + len(steps))
    return extra_s, asked_s, parts / len(steps) * len(SPEEDS)


def predict(
    case: Case, allocation: str, *, steps: int, part_s: float = 0.0, trip_s: float = 0.001
) -> float:
    """What the simulator says, if each part costs so much more and each question takes so long."""
    nodes = tuple(
        SimulatedNode(
            name=f"n{place}",
            fixed_s=case.fixed_s / speed + part_s,
            per_sample_s=case.per_sample_s / speed,
            latency_s=trip_s,
        )
        for place, speed in enumerate(case.speeds)
    )
    scenario = Scenario(nodes=nodes, noise=case.noise, exchange_s=0.002)
    options = ControlOptions(global_batch=BATCH, allocation=allocation, may_exclude=False)
    course = Course(faults=FaultPlan(faults=_drops(case)))
    found = simulate(scenario, options=options, steps=steps, seed=0, course=course)
    counted = found.history[min(WARM_UP, steps // 2) :]
    optimum_s = sum(step.optimum_s - part_s for step in counted)  # which knows of it, and must not
    return optimum_s / sum(step.step_s for step in counted)


def _drops(case: Case) -> tuple[Fault, ...]:
    """As many steps as take half of the time between two drops, one worker after the other."""
    if not case.drop_every_s:
        return ()
    step_s = BATCH * case.per_sample_s / sum(case.speeds)
    every = round(case.drop_every_s / step_s)
    return tuple(
        Fault(
            worker=turn % len(case.speeds),
            kind="slow",
            step=turn * every,
            to=1 / 3,
            for_steps=every // 2,
        )
        for turn in range(100)
    )


def show(rows: list[dict[str, Any]]) -> str:
    """A table of what was measured, and simulated."""
    found: dict[tuple[str, str], list[list[list[Step]]]] = {}
    for row in rows:
        found.setdefault((row["case"], row["allocation"]), []).append(row["workers"])
    shown = []
    costs = {
        key: lost_per_part([some for run in runs for some in run]) for key, runs in found.items()
    }
    for (name, allocation), runs in sorted(found.items(), key=_place):
        extra_s, asked_s, parts = costs[name, allocation]
        like = costs.get(
            (name, "self-scheduled"), (extra_s,)
        )  # shares have one part, and no estimate
        case, steps = CASES[name], len(runs[0][0])
        as_measured = predict(case, allocation, steps=steps, part_s=like[0], trip_s=asked_s)
        shown.append(
            [
                name,
                f"`{allocation}`",
                efficiency([run[0] for run in runs]),
                f"{predict(case, allocation, steps=steps):.3f}",
                f"{as_measured:.3f}",
                f"{parts:.1f}",
                f"{extra_s * 1e3:.2f} ms",
                f"{asked_s * 1e3:.2f} ms",
            ]
        )
    return table(
        [
            *("case", "allocation", "efficiency [95 %]", "simulated", "simulated with these costs"),
            *("parts of a step", "a part costs", "waited for each"),
        ],
        shown,
    )


def _place(item: tuple[tuple[str, str], Any]) -> tuple[int, int]:
    (case, allocation), _ = item
    return list(CASES).index(case), ALLOCATIONS.index(allocation)


def main() -> None:
    """Measures, prints and writes down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=list(CASES), default=None)
    parser.add_argument("--short", action="store_true", help="60 steps, without (GSS)")
    parser.add_argument("--name", default="self_scheduled", help="of the file of results")
    given = parser.parse_args()
    journal = Journal(given.name)
    for name in CASES:
        if given.only in (None, name):
            some = [one for one in ALLOCATIONS if not given.short or "GSS" not in one]
            steps = 60 if given.short else given.steps
            measure(name, some, steps=steps, seeds=given.seeds, journal=journal)
    print(show(read_journal(journal.path)[1]))


if __name__ == "__main__":
    main()
