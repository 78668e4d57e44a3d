# SPDX-License-Identifier: Apache-2.0
"""How long the others pause when a worker joins a running job.

    python benchmarks/joining.py                   # 12 joins for each of two models: 4 minutes
    python benchmarks/joining.py --short           # 2 joins each

Equal workers, paced so that they fit the cores, train; a newcomer whose process is up already says
hello, copies the state, takes part, and leaves politely some steps later. The pause is the longest
step of any other worker, from the hello until some steps after the newcomer's first, minus the median
step before it, in units of that. The longest of as many ordinary steps, measured likewise just
before, is what chance alone does.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from elastic_worker import Part
from gangline.spec.event import Regrouped, StepDone
from harness import machine_facts
from paced_teams import table, write_results
from tormented_jobs import ElasticJob, Spread, exit_on_sigterm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.spec.event import AnyEvent

MODELS = {"lenet5": 64, "wide_mlp": 64}
"""The global batch of each: 62 thousand and 12.8 million parameters."""
LIMIT_STEPS = 1.0
STEPS_BEFORE = 40
STEPS_AFTER = 5


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """One newcomer, and what it cost the others."""

    step_s: float
    """The median step before it came."""
    longest_s: float
    """The longest step of any other worker while it came."""
    ordinary_s: float
    """The longest of as many steps of any worker before it came."""
    joining_s: float
    """From its hello until it was in the group."""
    regroup_s: float
    """What changing the group took, by the slowest of the others."""
    first_s: float
    """How long the newcomer computed in its first step, for which the others waited."""

    @property
    def pause_steps(self) -> float:
        """How much longer the longest step was, in steps."""
        return self.longest_s / self.step_s - 1

    @property
    def ordinary_steps(self) -> float:
        """The same of ordinary steps."""
        return self.ordinary_s / self.step_s - 1


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """All joins of one model."""

    model: str
    workers: int
    joins: list[Join]
    problems: list[str]
    """What the ledger says was lost or used twice."""


def find_join(
    events: Sequence[AnyEvent], *, others: Sequence[int], newcomer: int, hello_s: float
) -> Join | None:
    """What a join cost; None while it is not over."""
    entered = [e for e in events if isinstance(e, Regrouped) and newcomer in e.members]
    done = [e for e in events if isinstance(e, StepDone)]
    own = sorted(e.step for e in done if e.worker == newcomer)
    if len(own) <= STEPS_AFTER or not {newcomer, *others} <= {e.worker for e in entered}:
        return None
    last = own[STEPS_AFTER]
    ends = {w: _ends(events, w, last) for w in others}
    if not all(last in steps for steps in ends.values()):
        return None
    around = [s for steps in ends.values() for s in _durations(steps, since=hello_s)]
    count = len(around) // len(others)
    before = {w: {n: t for n, t in steps.items() if t < hello_s} for w, steps in ends.items()}
    ordinary = [s for steps in before.values() for s in _durations(steps)[-count:]]
    usual = [s for steps in before.values() for s in _durations(steps)[-STEPS_BEFORE:]]
    return Join(
        step_s=median(usual),
        longest_s=max(around),
        ordinary_s=max(ordinary),
        joining_s=max(e.t for e in entered if e.worker == newcomer) - hello_s,
        regroup_s=max(e.took_s for e in entered if e.worker != newcomer),
        first_s=next(e.compute_s for e in done if e.worker == newcomer and e.step == own[0]),
    )


def _ends(events: Sequence[AnyEvent], worker: int, last: int) -> dict[int, float]:
    """When a worker finished each step up to the last."""
    steps = [e for e in events if isinstance(e, StepDone) and e.worker == worker]
    return {e.step: e.t for e in sorted(steps, key=lambda one: one.step) if e.step <= last}


def _durations(ends: dict[int, float], *, since: float = 0.0) -> list[float]:
    """How long each step took that ended after that time."""
    return [after - before for before, after in pairwise(ends.values()) if after >= since]


def take_one_in(job: ElasticJob, *, others: Sequence[int]) -> Join:
    """Lets one worker join, and leave again."""
    settled_s = time.time()
    job.await_steps(STEPS_BEFORE)
    hello_s = time.time()
    newcomer = job.join()

    def find() -> Join | None:
        events = job.tail.since(settled_s)
        return find_join(events, others=others, newcomer=newcomer, hello_s=hello_s)

    join = job.until(find, "the newcomer")
    job.signal(newcomer, signal.SIGTERM)
    job.until(lambda: newcomer not in job.members(), "the newcomer's leave")
    return join


def measure(model: str, *, workers: int, count: int) -> Series:
    """Many joins of one job, one after the other."""
    others = range(workers)
    with tempfile.TemporaryDirectory(prefix="gangline-bench-") as folder:
        part = Part(kind="gangline", folder=folder, model=model, global_batch=MODELS[model])
        with ElasticJob(Path(folder), part, workers=workers, standbys=count) as job:
            job.await_standbys()
            joins = [take_one_in(job, others=others) for _ in range(count)]
            problems = job.lost_samples()
    return Series(model=model, workers=workers, joins=joins, problems=problems)


def describe(found: Sequence[Series], *, facts: str) -> str:
    """All of it as Markdown."""
    headings = ["model", "workers", "n", "step", "pause in steps: median", "p95", "max", "limit"]
    headings += ["by chance: median", "max", "regrouping", "first step", "joining", "lost"]
    return "\n\n".join(
        [
            "# joining",
            "The pause is the longest step of any other worker around the join, minus the median "
            "step, in steps; `by chance` is the same of as many ordinary steps. `regrouping` is the "
            "change of the group by the slowest of the others, `first step` what the newcomer "
            "computed in its first one, `joining` the time from its hello until it takes part (the "
            "others train meanwhile). `lost`: what the ledger finds missing or used twice.",
            table(headings, [_row(series) for series in found]),
            f"Machine: {facts}.\n",
        ]
    )


def _row(series: Series) -> list[str]:
    pause = Spread.of([join.pause_steps for join in series.joins])
    chance = Spread.of([join.ordinary_steps for join in series.joins])
    names = ("step_s", "regroup_s", "first_s", "joining_s")
    step, *parts = (median(getattr(join, name) for join in series.joins) for name in names)
    return [
        series.model,
        f"{series.workers} + 1",
        str(pause.count),
        f"{step * 1e3:.0f} ms",
        *(f"{value:.2f}" for value in (pause.median, pause.p95, pause.greatest)),
        f"{LIMIT_STEPS:g} {'met' if pause.median <= LIMIT_STEPS else 'MISSED'}",
        f"{chance.median:.2f}",
        f"{chance.greatest:.2f}",
        *(f"{seconds * 1e3:.0f} ms" for seconds in parts),
        str(len(series.problems)),
    ]


def main() -> None:
    """Measures, prints, and saves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=3, help="before somebody joins")
    parser.add_argument("--joins", type=int, default=12, help="of each model")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--short", action="store_true", help="2 joins of each model")
    parser.add_argument("--name", default="joining", help="of the files in results/")
    options = parser.parse_args()
    exit_on_sigterm()
    count = 2 if options.short else options.joins
    machine = machine_facts()
    found = []
    for model in options.models:
        series = measure(model, workers=options.workers, count=count)
        found.append(series)
        print(" | ".join(_row(series)), flush=True)
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    write_results(options.name, describe(found, facts=facts), {"machine": machine, "models": found})


if __name__ == "__main__":
    main()
