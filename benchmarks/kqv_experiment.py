# SPDX-License-Identifier: Apache-2.0
"""The experiment of the BalanceNet Orchestrator (KQV) paper, on even workers and on uneven ones.

    python benchmarks/kqv_experiment.py               # about six minutes on 2 cores
    python benchmarks/kqv_experiment.py --full        # all updates, however long they take

The publication trains a baseline CNN, AlexNet, ResNet50 and VGG16 on MNIST with four equal GPUs, and
reports the "weight update time", averaged over every 100 of 2,400 updates, for KQV, equal and random
shares. It does not define that time, but speaks of "communication time during weight updates across
nodes". So here it is the time from a worker's last own gradient until its weights are updated
(`exchange_s + update_s` of the event `step_done`), which contains waiting for slower workers; the mean
over all workers. Beside it stand the optimizer's part (`update_s`), the whole step, and the samples of
a step, because KQV's shares do not sum to the global batch.

The models have their forms for small images. The policies take turns, a few updates each.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.spec.event import StepDone
from harness import machine_facts
from paced_teams import JobOptions, PacedTeam, RunningJob, table, write_results

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

POLICIES = ("kqv", "equal", "random", "balanced")
UNEVEN_SPEEDS = (1.0, 0.75, 0.5, 0.25)
"""Before scaling. No less even, as the slowest needs seconds for an update of ResNet50 already."""
PER_AVERAGE = 100
LEAST_UPDATES = 20
"""With fewer of any policy, nothing is said about their order."""
FIRST_UPDATES = 1
"""Not counted: memory is allocated, and KQV counts the operations."""
TURN_S = 2.0
"""How long a policy's turn should last."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the experiment."""

    title: str
    model: str
    """A name of the zoo."""
    global_batch: int
    updates: int
    part: float
    """Of the time of the whole benchmark, for both clusters together."""
    published_ms: dict[str, float | None]
    """The weight update times that the text of the publication gives; None: not in the text."""


TRIALS = (
    Trial(
        title="baseline CNN",
        model="baseline_cnn",
        global_batch=32,
        updates=2400,
        part=0.4,
        published_ms={"kqv": 0.103, "equal": None, "random": None},
    ),
    Trial(
        title="AlexNet",
        model="alexnet",
        global_batch=12,
        updates=100,
        part=0.2,
        published_ms={"kqv": 0.212, "equal": 0.217, "random": 0.244},
    ),
    Trial(
        title="ResNet50",
        model="resnet50",
        global_batch=12,
        updates=100,
        part=0.2,
        published_ms={"kqv": 0.263, "equal": 0.323, "random": 0.283},
    ),
    Trial(
        title="VGG16",
        model="vgg16",
        global_batch=12,
        updates=100,
        part=0.2,
        published_ms={"kqv": 0.263, "equal": None, "random": None},
    ),
)
SOURCE = (
    "Sun, Ngo, Huh: BalanceNet Orchestrator: A KQV-based Dynamic Task Allocation for Distributed Deep "
    "Learning, sections 4.4.1 to 4.4.5 (four RTX 2080 Ti). Numbers that only its figures show are not "
    "in the text, and stand here as a dash."
)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one policy."""

    updates: int
    """So many were taken, of those asked for; the first few are not counted."""
    weight_update_s: float
    standard_error_s: float
    """Of that mean."""
    optimizer_s: float
    step_s: float
    samples_per_step: float
    shares: list[int]
    """Those of the last step."""
    averages_s: list[float]
    """The weight update time, averaged over each 100 updates (or what is left of them)."""

    @property
    def per_sample_s(self) -> float:
        """Step time per sample: what policies with different batches can be compared by."""
        return self.step_s / self.samples_per_step


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one cluster."""

    title: str
    cluster: str
    global_batch: int
    updates: int
    published_ms: dict[str, float | None]
    figures: dict[str, Figures]

    def order(self, what: str = "weight_update_s") -> list[str]:
        """The published policies, the fastest first."""
        published = [name for name in POLICIES if name in self.published_ms]
        return sorted(published, key=lambda name: getattr(self.figures[name], what))

    @property
    def is_decided(self) -> bool:
        """Whether there are updates enough, and the published policies differ by more than noise."""
        if min(figures.updates for figures in self.figures.values()) < LEAST_UPDATES:
            return False
        ranked = [self.figures[name] for name in self.order()]
        return all(
            slow.weight_update_s - fast.weight_update_s
            > 2 * math.hypot(slow.standard_error_s, fast.standard_error_s)
            for fast, slow in pairwise(ranked)
        )


class Entrant:
    """A policy's running job."""

    def __init__(self, job: RunningJob, *, updates: int) -> None:
        self.job = job
        self._updates = updates
        self._turn = 1
        self.walls_s: list[float] = []

    @property
    def is_done(self) -> bool:
        return self.job.num_taken > self._updates + FIRST_UPDATES

    def begin(self) -> None:
        """The updates that are not counted, and one that is."""
        # The last update is logged when the loop comes back for more, so one more is needed.
        while self.job.num_taken < FIRST_UPDATES + 2:
            self.take_turn()

    def take_turn(self) -> None:
        """Some updates, about as many as fit into a turn."""
        left = self._updates + FIRST_UPDATES + 1 - self.job.num_taken
        taken = self.job.take(max(1, min(self._turn, left)))
        self.walls_s += taken.walls_s
        fitting = TURN_S / float(np.median(taken.walls_s))
        self._turn = int(np.clip(fitting, 1, PER_AVERAGE))

    def figures(self) -> Figures:
        """What the workers logged; the job is left for that."""
        self.job.leave()
        steps: dict[int, list[StepDone]] = {}
        for event in self.job.events():
            if isinstance(event, StepDone) and event.step >= FIRST_UPDATES:
                steps.setdefault(event.step, []).append(event)
        numbers = sorted(steps)
        update_s = [mean(e.exchange_s + e.update_s for e in steps[n]) for n in numbers]
        starts = range(0, len(numbers), PER_AVERAGE)
        last = sorted(steps[numbers[-1]], key=lambda event: event.worker)
        return Figures(
            updates=len(numbers),
            weight_update_s=mean(update_s),
            standard_error_s=float(np.std(update_s) / np.sqrt(len(update_s))),
            optimizer_s=mean(e.update_s for n in numbers for e in steps[n]),
            step_s=mean(self.walls_s[FIRST_UPDATES:]),
            samples_per_step=mean(sum(e.samples for e in steps[n]) for n in numbers),
            shares=[event.samples for event in last],
            averages_s=[mean(update_s[start : start + PER_AVERAGE]) for start in starts],
        )


def mean(values: object) -> float:
    """The arithmetic mean."""
    return float(np.mean(list(values)))  # type: ignore[call-overload]


def run_case(
    teams: Mapping[str, PacedTeam], trial: Trial, *, cluster: str, seconds: float | None
) -> Case:
    """All policies on one cluster, in turns, until all updates are done or the time is up."""
    with contextlib.ExitStack() as stack:
        entrants = {}
        for name, team in teams.items():
            options = JobOptions(
                model=trial.model, global_batch=trial.global_batch, allocation=name
            )
            job = stack.enter_context(team.job(options))
            entrants[name] = Entrant(job, updates=trial.updates)
            entrants[name].begin()
        deadline = float("inf") if seconds is None else time.monotonic() + seconds
        while time.monotonic() < deadline and not all(e.is_done for e in entrants.values()):
            for entrant in entrants.values():
                if not entrant.is_done:
                    entrant.take_turn()
        figures = {name: entrant.figures() for name, entrant in entrants.items()}
    return Case(
        title=trial.title,
        cluster=cluster,
        global_batch=trial.global_batch,
        updates=trial.updates,
        published_ms=trial.published_ms,
        figures=figures,
    )


# The report


def describe(case: Case) -> str:
    """One model on one cluster, as Markdown."""
    rows = []
    for name in POLICIES:
        figures = case.figures[name]
        published = case.published_ms.get(name)
        rows.append(
            [
                name,
                figures.updates,
                f"{figures.weight_update_s * 1e3:.1f} ± {figures.standard_error_s * 1e3:.1f}",
                "–" if published is None else f"{published:.3f}",
                f"{figures.optimizer_s * 1e3:.2f}",
                f"{figures.step_s * 1e3:.1f}",
                f"{figures.samples_per_step:.1f}",
                f"{figures.per_sample_s * 1e3:.2f}",
                figures.shares,
            ]
        )
    headings = ["policy", "updates", "weight update (ms)", "published (ms)", "optimizer (ms)"]
    headings += ["step (ms)", "samples per step", "step per sample (ms)", "last shares"]
    title = f"### {case.title}, {case.cluster} workers, global batch {case.global_batch}"
    return f"{title}\n\n{table(headings, rows)}\n\n{compare_orders(case)}"


def compare_orders(case: Case) -> str:
    """Sentences on what agrees with the publication, and on what the work per step explains."""
    ratio = case.figures["kqv"].samples_per_step / case.global_batch
    work = f"KQV computes {ratio:.0%} of the global batch per step"
    own = case.order()
    if not case.is_decided:
        return (
            f"Too few updates, or differences no larger than the noise: no order is seen. {work}."
        )
    known = {name: ms for name, ms in case.published_ms.items() if ms is not None}
    if len(known) == len(case.published_ms):
        published = sorted(known, key=lambda name: known[name])
        verdict = "agrees with" if own == published else "differs from"
        first = f"The order {' < '.join(own)} {verdict} the published {' < '.join(published)}."
    else:
        verdict = "agrees" if own[0] == "kqv" else "does not agree"
        first = (
            f"Fastest of the three is {own[0]}: this {verdict} with the published claim for kqv."
        )
    by_work = " < ".join(case.order("per_sample_s"))
    best = min(POLICIES, key=lambda name: case.figures[name].per_sample_s)
    return f"{first} {work}; by step time per sample the order is {by_work}, and {best} is best of all."


def conclude(cases: Sequence[Case]) -> str:
    """One sentence per cluster."""
    sentences = []
    for cluster in dict.fromkeys(case.cluster for case in cases):
        own = [case for case in cases if case.cluster == cluster]
        decided = [case for case in own if case.is_decided]
        by_time = [case.title for case in decided if case.order()[0] == "kqv"]
        by_work = [case.title for case in decided if case.order("per_sample_s")[0] == "kqv"]
        sentences.append(
            f"On {cluster} workers an order is seen for {len(decided)} of {len(own)} models. "
            "KQV has the shortest weight update of the three published policies "
            f"for {', '.join(by_time) or 'no model'}; with the work per step taken into account it is "
            f"fastest for {', '.join(by_work) or 'no model'}."
        )
    return " ".join(sentences)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cores = len(os.sched_getaffinity(0))
    titles = [trial.model for trial in TRIALS]
    parser.add_argument("--models", nargs="+", choices=titles, default=titles)
    parser.add_argument(
        "--clusters", nargs="+", choices=["even", "uneven"], default=["even", "uneven"]
    )
    parser.add_argument("--scale", type=float, default=0.4 if cores < 8 else 1.0)
    parser.add_argument(
        "--updates", type=int, help="at most so many of each (default: 2400 and 100)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=130.0,
        help="for the updates of all cases, beside starting and joining",
    )
    parser.add_argument("--full", action="store_true", help="all updates, however long they take")
    parser.add_argument(
        "--name", default="kqv_experiment", help="of the files in benchmarks/results"
    )
    return parser.parse_args()


def main() -> None:
    """Runs the experiment, and writes and prints the results."""
    options = parse_options()
    machine = machine_facts()
    trials = [trial for trial in TRIALS if trial.model in options.models]
    if options.updates is not None:
        trials = [
            msgspec.structs.replace(trial, updates=min(options.updates, trial.updates))
            for trial in trials
        ]
    speeds = {
        "even": [1.0] * len(UNEVEN_SPEEDS),
        "uneven": [speed * options.scale for speed in UNEVEN_SPEEDS],
    }
    parts = sum(trial.part for trial in trials) * len(options.clusters)
    cases = []
    with contextlib.ExitStack() as stack:
        teams = {name: stack.enter_context(PacedTeam(speeds["even"])) for name in POLICIES}
        for cluster in options.clusters:
            for team in teams.values():
                team.set_speeds(speeds[cluster])
            for trial in trials:
                seconds = None if options.full else options.seconds * trial.part / parts
                cases.append(run_case(teams, trial, cluster=cluster, seconds=seconds))
                print(describe(cases[-1]), flush=True)
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    markdown = "\n\n".join(
        [
            "# Weight update time: KQV, equal, random, and balanced",
            conclude(cases),
            *(describe(case) for case in cases),
            "Weight update: from a worker's last gradient until its weights are updated, waiting "
            "included; the mean over workers and updates, ± its standard error. "
            "Even workers: four processes, not paced. "
            f"Uneven: speeds 1 : 0.75 : 0.5 : 0.25 times {options.scale:g}. Of the updates the first "
            "is not counted. Where `updates` is below what was asked for, the time was up.",
            f"Published: {SOURCE}",
            f"Machine: {facts}.",
        ]
    )
    write_results(options.name, markdown + "\n", {"cases": cases, "machine": machine})


if __name__ == "__main__":
    main()
