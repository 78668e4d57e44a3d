# SPDX-License-Identifier: Apache-2.0
"""A program, which is a sequence of loops, by fixed choices and by choices that it picks itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.scheduling import Speeds, WorkQueues
from gangline.scheduling.selection import Selector
from gangline.simulation.loops.crowd import Crowd, Overheads
from gangline.simulation.loops.run import LoopResult, run_loop
from gangline.simulation.loops.sources import FlatSource, TwoLevelSource
from gangline.simulation.loops.workloads import Costs, make_workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.scheduling import Choice
    from gangline.scheduling.selection import Advice
    from gangline.simulation.loops.sources import Source

SEEDS_APART = 1000
"""The seeds of two programs must differ for all of their loops."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """Loops of one kind, one after the other, on the same workers."""

    crowd: Crowd
    overheads: Overheads = Overheads()
    loops: int = 1
    seed: int = 0
    """What noise, and the items of random workloads, are drawn with, anew for each loop."""
    workload: str = "uniform"
    items: int = 10_000
    mean_s: float = 1e-3
    costs: Costs | None = None
    """What each item costs, in every loop, instead of a workload."""

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self.crowd.speeds)

    def costs_of(self, loop: int) -> Costs:
        """What each item of a loop costs."""
        if self.costs is not None:
            return self.costs
        seed = self.seed * SEEDS_APART + loop
        return make_workload(self.workload, self.items, mean_s=self.mean_s, seed=seed)

    def run(self, loop: int, costs: Costs, source: Source) -> LoopResult:
        """One of the loops."""
        seed = self.seed * SEEDS_APART + loop
        return run_loop(costs, source, self.crowd, remote=self.overheads.remote, seed=seed)


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What a program took, per loop."""

    choice: str
    scheme: str
    layout: str
    victims: str
    grain: int
    time_s: float
    imbalance: float
    chunks: float
    steals: float
    overhead_s: float
    """Of all workers together."""


def run_fixed(program: Program, choice: Choice) -> list[LoopResult]:
    """All loops by one choice; what a scheme learns of the workers it keeps from loop to loop."""
    speeds, results = Speeds(), []
    for loop in range(program.loops):
        costs = program.costs_of(loop)
        queues = WorkQueues(
            choice,
            total=len(costs),
            workers=program.workers,
            groups=program.crowd.group_of,
            speeds=speeds,
            seed=loop,
        )
        results.append(program.run(loop, costs, FlatSource(queues, program.overheads)))
    return results


def run_two_levels(
    program: Program, outer: Choice, inner: Choice, *, between_s: float
) -> list[LoopResult]:
    """All loops with one choice between the groups of the crowd and another one inside of them."""
    results = []
    for loop in range(program.loops):
        costs = program.costs_of(loop)
        source = TwoLevelSource(
            outer,
            inner,
            total=len(costs),
            crowd=program.crowd,
            overheads=program.overheads,
            between_s=between_s,
            seed=loop,
        )
        results.append(program.run(loop, costs, source))
    return results


def run_automated(
    program: Program, *, method: str = "expert"
) -> tuple[list[LoopResult], list[Advice]]:
    """All loops by choices that follow from the loops before, and what was decided."""
    selector = Selector(
        workers=program.workers, groups=program.crowd.group_of, method=method, seed=program.seed
    )
    results = []
    for loop in range(program.loops):
        costs = program.costs_of(loop)
        queues = selector.begin(len(costs))
        results.append(program.run(loop, costs, FlatSource(queues, program.overheads)))
        selector.end(queues)
    return results, selector.decided()


def summed_up(results: Sequence[LoopResult], choice: Choice | None, *, name: str = "") -> Compared:
    """The mean of the loops."""
    count = max(len(results), 1)
    return Compared(
        choice=name or str(choice),
        scheme=name or str(choice.scheme if choice else ""),
        layout=str(choice.layout) if choice else "",
        victims=str(choice.victims) if choice else "",
        grain=choice.grain if choice else 0,
        time_s=sum(one.time_s for one in results) / count,
        imbalance=sum(one.imbalance for one in results) / count,
        chunks=sum(one.chunks for one in results) / count,
        steals=sum(one.steals for one in results) / count,
        overhead_s=sum(one.overhead_s for one in results) / count,
    )
