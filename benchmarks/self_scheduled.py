# SPDX-License-Identifier: Apache-2.0
"""Parts that are pulled against shares: how much of four uneven machines is used.

    python benchmarks/self_scheduled.py                    # about 15 minutes
    python benchmarks/self_scheduled.py --steps 40 --seeds 1 --only steady

Four real workers with the speeds 1, 1, 0.5 and 0.5 sleep for as long as their samples would take
(`self_scheduled_worker.py`), so that a few cores are enough. But those must be free: who asks the
coordinator on a machine that is busy otherwise waits for its turn. Efficiency is what a step would take
if all ended together without a wait, divided by what it took: the exchange, the questions to the
coordinator and what each part costs by itself count against it. Medians over the steps of the second
half, with 95 % intervals from resampled steps. The same cases are simulated.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import numpy as np

from gangline.control import ControlOptions
from gangline.simulation import Course, Scenario, simulate
from gangline.simulation.scenario import SimulatedNode
from gangline.spec.faults import Fault, FaultPlan
from gangline.testing import run_workers
from harness import RESULTS, Interval, machine_facts
from self_scheduled_worker import Case, train

SPEEDS = (1.0, 1.0, 0.5, 0.5)
CASES = {
    "steady": Case(SPEEDS),
    "noise of 30 %": Case(SPEEDS, noise=0.3),
    "one drops to a third": Case(SPEEDS, drop_every_s=10.0),
}
ALLOCATIONS = ("equal", "balanced", "self-scheduled", "self-scheduled(GSS)", "balanced+stolen")
BATCH = 192
DEADLINE_S = 600.0


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The efficiency of one allocation in one case."""

    case: str
    allocation: str
    measured: Interval
    simulated: float


def measure(case: Case, allocation: str, *, steps: int, seeds: int) -> Interval:
    """Real workers; the first of them tells."""
    found: list[float] = []
    for seed in range(seeds):
        arguments = (case, allocation, BATCH, steps, seed)
        told = run_workers(train, len(SPEEDS), args=arguments, deadline_s=DEADLINE_S)
        found += told[0][steps // 2 :]
    rng, values = np.random.default_rng(0), np.array(found)
    medians = np.median(values[rng.integers(len(values), size=(2000, len(values)))], axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return Interval(median=float(np.median(values)), low=float(low), high=float(high))


def predict(case: Case, allocation: str, *, steps: int) -> float:
    """What the simulator says of the same."""
    scenario = Scenario(
        nodes=tuple(SimulatedNode(name=f"n{i}", speed=one) for i, one in enumerate(case.speeds)),
        fixed_s=case.fixed_s,
        per_sample_s=case.per_sample_s,
        noise=case.noise,
        exchange_s=0.002,
    )
    options = ControlOptions(global_batch=BATCH, allocation=allocation, may_exclude=False)
    course = Course(faults=FaultPlan(faults=_drops(case, scenario)))
    return simulate(scenario, options=options, steps=steps, seed=0, course=course).efficiency


def _drops(case: Case, scenario: Scenario) -> tuple[Fault, ...]:
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
        for turn in range(1, 100)
    )


def show(found: list[Found]) -> str:
    """A table for people."""
    lines = ["| case | allocation | efficiency [95 %] | simulated |", "|---|---|---|---|"]
    lines += [
        f"| {one.case} | `{one.allocation}` | {one.measured} | {one.simulated:.3f} |"
        for one in found
    ]
    return "\n".join(lines)


def main() -> None:
    """Measures, prints and writes down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=list(CASES), default=None)
    given = parser.parse_args()
    found = [
        Found(
            case=name,
            allocation=allocation,
            measured=measure(case, allocation, steps=given.steps, seeds=given.seeds),
            simulated=predict(case, allocation, steps=given.steps),
        )
        for name, case in CASES.items()
        if given.only in (None, name)
        for allocation in ALLOCATIONS
    ]
    print(show(found))
    RESULTS.mkdir(exist_ok=True)
    written = {"machine": machine_facts(), "found": found}
    Path(RESULTS, "self_scheduled.json").write_bytes(msgspec.json.encode(written))


if __name__ == "__main__":
    main()
