# SPDX-License-Identifier: Apache-2.0
"""How far is the automated choice of a schedule behind the best fixed one, looking back?

    python benchmarks/scheduling_regret.py [--loops 20] [--items 2000] [--overhead 1] [--quick]

Virtual time, about ten minutes. On eight workloads and three clusters of eight workers in two groups,
each program is a sequence of loops. Every fixed choice (scheme, grain, layout, rule for victims) runs
two loops, and the best 24 of them more, with the seeds for choosing; the best eight, and the automated
choices, run the program with the seeds for comparing, which nobody has seen. The items of random
workloads are drawn anew for each loop.
Printed is by how much longer the automated choice takes than the fixed one that was best for choosing
(and than the one that was the best with the seeds for comparing itself, which nobody can know).
"""

from __future__ import annotations

import argparse
import itertools
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from gangline.scheduling import Choice
from gangline.scheduling.schemes.named import SCHEMES
from gangline.scheduling.victims import VICTIMS
from gangline.simulation.loops import (
    WORKLOADS,
    Crowd,
    LoopResult,
    Overheads,
    Program,
    run_automated,
    run_fixed,
)

GROUPS = (0, 0, 0, 0, 1, 1, 1, 1)
CLUSTERS = {
    "even": Crowd(speeds=(1.0,) * 8, groups=GROUPS, noise=0.02),
    "1:0.5:0.2:0.1": Crowd(
        speeds=(1.0, 1.0, 0.5, 0.5, 0.2, 0.2, 0.1, 0.1), groups=GROUPS, noise=0.02
    ),
    "noisy, pauses": Crowd(speeds=(1.0,) * 8, groups=GROUPS, noise=0.4, pause_probability=0.02),
}
OVERHEADS = Overheads(chunk_s=50e-6, queue_s=5e-6, steal_s=20e-6, far_steal_s=100e-6, remote=0.1)
GRAINS = (1, 8, 32)
OWN = ("AWF-C(x=8)", "AWF-E(x=8)")
"""Beside the published forms: smaller chunks, which the automated choice uses, too."""
CHOOSING, COMPARING = (100, 101), (200, 201, 202)
CHOOSING_LOOPS = 4
SCREENING_LOOPS, SCREENED = 2, 24
FINALISTS = 8


class Case(NamedTuple):
    """A sequence of loops of one kind on one cluster."""

    cluster: str
    workload: str
    loops: int
    items: int
    seed: int
    overhead: float

    def program(self, seed: int, *, loops: int | None = None) -> Program:
        """With one of the seeds."""
        return Program(
            crowd=CLUSTERS[self.cluster],
            overheads=scaled(self.overhead),
            loops=loops or self.loops,
            seed=self.seed + seed,
            workload=self.workload,
            items=self.items,
        )


def scaled(times: float) -> Overheads:
    """The overheads, where those of a chunk and of stealing are so many times as large."""
    return Overheads(
        chunk_s=OVERHEADS.chunk_s * times,
        queue_s=OVERHEADS.queue_s,
        steal_s=OVERHEADS.steal_s * times,
        far_steal_s=OVERHEADS.far_steal_s * times,
        remote=OVERHEADS.remote,
    )


def fixed_s(case: Case, choice: Choice, seeds: tuple[int, ...], *, loops: int) -> float:
    """What a loop takes with one choice for all loops."""
    programs = [case.program(seed, loops=loops) for seed in seeds]
    return mean_s([loop for program in programs for loop in run_fixed(program, choice)])


def automated_s(case: Case, method: str) -> float:
    """What a loop takes where each loop's choice follows from the loops before."""
    programs = [case.program(seed) for seed in COMPARING]
    return mean_s([loop for one in programs for loop in run_automated(one, method=method)[0]])


def mean_s(loops: list[LoopResult]) -> float:
    """The mean time of loops."""
    return sum(loop.time_s for loop in loops) / len(loops)


def fixed_choices() -> list[Choice]:
    """All combinations; with two groups, all rules for victims are the same between them."""
    queues = [("CENTRALIZED", "SEQ"), ("PERGROUP", "SEQ"), *(("PERCPU", rule) for rule in VICTIMS)]
    return [
        Choice.parse(scheme, grain=grain, layout=layout, victims=rule)
        for scheme, grain, (layout, rule) in itertools.product([*SCHEMES, *OWN], GRAINS, queues)
    ]


class Row(NamedTuple):
    """What came of one program; seconds per loop."""

    case: Case
    best: str
    """The fixed choice that was best with the seeds for choosing."""
    best_s: float
    hindsight_s: float
    """The best of the finalists with the seeds for comparing."""
    expert_s: float
    sarsa_s: float
    worst_s: float
    """The worst fixed choice, with a seed for choosing."""


def ranked(
    case: Case, choices: list[Choice], seeds: tuple[int, ...], *, loops: int
) -> list[tuple[float, str, Choice]]:
    """The choices with their time per loop, the best first."""
    found = [(fixed_s(case, one, seeds, loops=loops), str(one), one) for one in choices]
    return sorted(found, key=lambda one: one[:2])


def compare(case: Case) -> Row:
    """All fixed choices, and the automated ones."""
    screened = ranked(case, fixed_choices(), CHOOSING[:1], loops=SCREENING_LOOPS)
    kept = [choice for _, _, choice in screened[:SCREENED]]
    found = ranked(case, kept, CHOOSING, loops=CHOOSING_LOOPS)[:FINALISTS]
    finals = [fixed_s(case, choice, COMPARING, loops=case.loops) for _, _, choice in found]
    return Row(
        case,
        best=found[0][1],
        best_s=finals[0],
        hindsight_s=min(finals),
        expert_s=automated_s(case, "expert"),
        sarsa_s=automated_s(case, "sarsa"),
        worst_s=screened[-1][0],
    )


def print_rows(rows: list[Row]) -> None:
    """The table, and what it comes to."""
    print("| cluster | workload | best fixed choice | its loop | worst fixed | automated | sarsa |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row.case.cluster} | {row.case.workload} | {row.best} | "
            f"{row.best_s * 1e3:.1f} ms | {row.worst_s / row.best_s - 1:+.0%} | "
            f"{row.expert_s / row.best_s - 1:+.1%} | {row.sarsa_s / row.best_s - 1:+.1%} |"
        )
    for name, took in (("automated", "expert_s"), ("sarsa", "sarsa_s")):
        regrets = [getattr(row, took) / row.best_s - 1 for row in rows]
        hindsight = [getattr(row, took) / row.hindsight_s - 1 for row in rows]
        within = sum(one <= 0.05 for one in regrets)
        print(
            f"{name}: mean {sum(regrets) / len(rows):+.1%}, worst {max(regrets):+.1%}; "
            f"{within} of {len(rows)} within 5 %; behind the best of the finalists in hindsight: mean "
            f"{sum(hindsight) / len(rows):+.1%}, worst {max(hindsight):+.1%}"
        )


def main() -> None:
    """Runs all programs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loops", type=int, default=20)
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=9000, help="not looked at for the rules")
    parser.add_argument("--overhead", type=float, default=1.0, help="times what chunks cost")
    parser.add_argument("--quick", action="store_true", help="two workloads only")
    given = parser.parse_args()
    names = list(WORKLOADS)[:2] if given.quick else list(WORKLOADS)
    cases = [
        Case(cluster, workload, given.loops, given.items, given.seed, given.overhead)
        for cluster, workload in itertools.product(CLUSTERS, names)
    ]
    with ProcessPoolExecutor(given.processes) as pool:
        print_rows(list(pool.map(compare, cases)))


if __name__ == "__main__":
    main()
