# SPDX-License-Identifier: Apache-2.0
"""How long a job stands still when a worker is killed or hangs, and when the coordinator goes with it.

    python benchmarks/recovery.py                  # 4, 8 and 16 workers, 20 faults each: 40 minutes
    python benchmarks/recovery.py --short          # 4 workers, 3 faults each

Equal workers, paced so that they fit the cores, train LeNet-5. One of them gets SIGKILL (and is
replaced by a newcomer afterwards), or SIGSTOP (and is woken afterwards), at a random moment. Recovery
lasts from the signal until the last survivor has made its first step without the victim. In two more
series the coordinator is killed, or stopped, in the same moment as a worker is killed. Plain DDP
over gloo, and torchft if its python is given, get the same faults; each time they are started anew.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import rivals
from elastic_worker import Part
from gangline.spec.event import Decision, Regrouped, StepDone
from harness import machine_facts
from paced_teams import table, write_results
from tormented_jobs import ElasticJob, Spread, exit_on_sigterm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.spec.event import AnyEvent

Facts = dict[str, str | int | float]

FAULTS = ("kill", "hang", "kill both", "kill, coordinator hangs")
LIMITS_S = {"kill": 1.0, "hang": 2.0, "kill both": 1.5, "kill, coordinator hangs": 1.5}
"""Within which noticing, the new view and the new group are due; of a hang, beyond the patience."""
OF_COORDINATOR = {"kill both": signal.SIGKILL, "kill, coordinator hangs": signal.SIGSTOP}
"""What the coordinator gets, right before the worker."""
RIVAL_FAULTS = ("kill", "hang")
"""They have no coordinator that could be hurt alone."""
SAMPLES_PER_WORKER = 8
SETTLING_STEPS = 10
GREATEST_WAIT_S = 0.3
"""The signal comes at a random moment of the steps."""
RIVAL_PATIENCE_S = 20.0
"""So long, beyond their timeout, the rivals' survivors are waited for."""


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """One fault survived: seconds of each part."""

    detection_s: float
    """From the signal until the coordinator decided who is lost."""
    group_s: float
    """From there until the last survivor was in the new group."""
    step_s: float
    """From there until the last survivor had made a step."""
    patience_s: float
    """How long the victim might be silent; 0 for a kill."""
    num_bystanders: int
    """Survivors that were put out too."""

    @property
    def regrouped_s(self) -> float:
        """From the signal until the last survivor could go on."""
        return self.detection_s + self.group_s

    @property
    def total_s(self) -> float:
        """From the signal until the last survivor had made a step."""
        return self.regrouped_s + self.step_s


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """All faults of one kind at one size."""

    workers: int
    fault: str
    speed: float
    recoveries: list[Recovery]
    problems: list[str]
    """What the ledger says was lost or used twice."""


class RivalSeries(msgspec.Struct, frozen=True, kw_only=True):
    """The same of a rival."""

    kind: str
    workers: int
    fault: str
    outcomes: list[rivals.Outcome]
    skipped: str = ""


def find_recovery(events: Sequence[AnyEvent], sent_s: float, *, victim: int) -> Recovery | None:
    """What happened after a signal; None while it is not over."""
    entered = [e for e in events if isinstance(e, Regrouped) and victim not in e.members]
    decided = [e for e in events if isinstance(e, Decision) and "lost" in e.numbers]
    if not entered or not decided:
        return None
    newest = max(entered, key=lambda event: event.view)
    arrived = {e.worker: e.t for e in entered if e.group == newest.group}
    stepped: dict[int, float] = {}
    for event in events:
        if isinstance(event, StepDone) and event.view >= newest.view:
            stepped.setdefault(event.worker, event.t)
    if not set(newest.members) <= set(arrived) & set(stepped):
        return None
    patience = re.search(r"silent for more than ([\d.]+) s", decided[0].reason)
    lost = [int(e.numbers["lost"] or 0) for e in decided]
    return Recovery(
        detection_s=decided[0].t - sent_s,
        group_s=max(arrived.values()) - decided[0].t,
        step_s=max(stepped[member] for member in newest.members) - max(arrived.values()),
        patience_s=float(patience[1]) if patience else 0.0,
        num_bystanders=max(0, sum(lost) - 1),
    )


def strike(job: ElasticJob, *, fault: str, rng: random.Random, workers: int) -> Recovery:
    """One fault, until everybody trains again."""
    job.await_steps(SETTLING_STEPS)
    victim = rng.choice(job.members())
    if fault in OF_COORDINATOR:
        job.await_spare()
    time.sleep(rng.uniform(0.0, GREATEST_WAIT_S))
    if fault in OF_COORDINATOR:
        job.signal_coordinator(OF_COORDINATOR[fault])
    sent_s = job.signal(victim, signal.SIGSTOP if fault == "hang" else signal.SIGKILL)
    try:
        recovery = job.until(
            lambda: find_recovery(job.tail.since(sent_s), sent_s, victim=victim), "the survivors"
        )
    finally:
        if fault == "hang":
            job.signal(victim, signal.SIGCONT)
    if fault != "hang":
        job.join()
    job.until(lambda: len(job.members()) == workers, f"{workers} members")
    return recovery


def measure(workers: int, *, fault: str, count: int, seed: int) -> Series:
    """Many faults of one job."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="gangline-bench-") as folder:
        part = Part(kind="gangline", folder=folder, global_batch=SAMPLES_PER_WORKER * workers)
        standbys = 0 if fault == "hang" else count
        with ElasticJob(Path(folder), part, workers=workers, standbys=standbys) as job:
            job.await_standbys()
            recoveries = [strike(job, fault=fault, rng=rng, workers=workers) for _ in range(count)]
            job.await_steps(SETTLING_STEPS)
            problems = job.lost_samples()
    return Series(
        workers=workers,
        fault=fault,
        speed=job.speed,
        recoveries=recoveries,
        problems=problems,
    )


def measure_rival(
    kind: str, workers: int, *, fault: str, count: int, timeout_s: float, python: str | None
) -> RivalSeries:
    """The same faults of a rival, each in a job of its own."""
    why = rivals.find_torchft(python) if kind == "torchft" else None
    if why is not None:
        return RivalSeries(kind=kind, workers=workers, fault=fault, outcomes=[], skipped=why)
    part = msgspec.structs.replace(
        rivals.ddp_part(workers, timeout_s=timeout_s, global_batch=SAMPLES_PER_WORKER * workers),
        kind=kind,
    )
    interpreter = python if kind == "torchft" and python else rivals.this_python()
    outcomes = []
    for seed in range(count):
        try:
            outcomes.append(
                rivals.torment(
                    part,
                    fault=fault,
                    python=interpreter,
                    patience_s=timeout_s + RIVAL_PATIENCE_S,
                    seed=seed,
                )
            )
        except TimeoutError as error:
            why = str(error)[-300:]
            return RivalSeries(
                kind=kind, workers=workers, fault=fault, outcomes=outcomes, skipped=why
            )
    return RivalSeries(kind=kind, workers=workers, fault=fault, outcomes=outcomes)


def describe(
    found: Sequence[Series], others: Sequence[RivalSeries], *, timeout_s: float, machine: Facts
) -> str:
    """All of it as Markdown."""
    headings = ["workers", "fault", "n", "patience", "noticed", "new view and group", "together"]
    headings += ["limit", "first step", "recovery: median", "p95", "max", "bystanders", "lost"]
    rows = [_row(series) for series in found]
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    rival_headings = ["rival", "workers", "fault", "n", "survivors crashed", "error after"]
    rival_headings += ["went on after"]
    return "\n\n".join(
        [
            "# recovery",
            "Seconds; medians where nothing else is said. `together` is the largest of noticing, new "
            "view and new group, without the patience, which is what the limit is for; `recovery` is "
            "from the signal until the last survivor's first step without the victim. `bystanders`: "
            "survivors that were put out too. `lost`: what the ledger finds missing or used twice.",
            table(headings, rows),
            f"The rivals: collective calls time out after {timeout_s:g} s; who fails ends, as a script "
            "does. DDP never goes on: what counts is how long its survivors take to notice.",
            table(rival_headings, [_rival_row(series) for series in others]),
            f"Machine: {facts}.\n",
        ]
    )


def _row(series: Series) -> list[str]:
    recoveries = series.recoveries
    total = Spread.of([one.total_s for one in recoveries])
    medians = [
        Spread.of([getattr(one, name) for one in recoveries]).median
        for name in ("patience_s", "detection_s", "group_s", "step_s")
    ]
    together = max(one.regrouped_s - one.patience_s for one in recoveries)
    patience, detection, group, step = (f"{value:.3f}" for value in medians)
    limit = LIMITS_S[series.fault]
    return [
        str(series.workers),
        series.fault,
        str(total.count),
        patience if series.fault == "hang" else "",
        detection,
        group,
        f"{together:.3f}",
        f"{limit:g} {'met' if together < limit else 'MISSED'}",
        step,
        *(f"{value:.3f}" for value in (total.median, total.p95, total.greatest)),
        str(sum(one.num_bystanders for one in recoveries)),
        str(len(series.problems)),
    ]


def _rival_row(series: RivalSeries) -> list[str]:
    outcomes = series.outcomes
    name, count = series.kind, str(len(outcomes))
    if series.skipped:
        why = f"skipped: {series.skipped}"
        return [name, str(series.workers), series.fault, count, why, "", ""]
    crashed = sum(one.num_crashed for one in outcomes)
    errors = [one.last_error_s for one in outcomes if one.last_error_s is not None]
    gone_on = [one.recovered_s for one in outcomes if one.recovered_s is not None]
    return [
        name,
        str(series.workers),
        series.fault,
        count,
        f"{crashed} of {len(outcomes) * (series.workers - 1)}",
        _span(errors, "nobody failed"),
        f"{_span(gone_on, 'never')} ({len(gone_on)} of {len(outcomes)})",
    ]


def _span(values: Sequence[float], nothing: str) -> str:
    return f"{min(values):.2f} to {max(values):.2f} s" if values else nothing


def main() -> None:
    """Measures, prints, and saves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--faults", type=int, default=20, help="of each kind at each size")
    parser.add_argument("--kinds", nargs="+", default=list(FAULTS), choices=FAULTS)
    parser.add_argument("--rival-faults", type=int, default=5, help="the same, of each rival")
    parser.add_argument("--timeout-s", type=float, default=10.0, help="the rivals' timeout")
    parser.add_argument("--torchft-python", help="the python of an environment with torchft")
    parser.add_argument("--short", action="store_true", help="4 workers, 3 faults of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="recovery", help="of the files in results/")
    options = parser.parse_args()
    exit_on_sigterm()
    if options.short:
        options.workers, options.faults, options.rival_faults = [4], 3, 1
    machine = machine_facts()
    found, others = [], []
    for workers in options.workers:
        for fault in options.kinds:
            series = measure(workers, fault=fault, count=options.faults, seed=options.seed)
            found.append(series)
            print(f"gangline {' | '.join(_row(series))}", flush=True)
            has_rivals = options.rival_faults and fault in RIVAL_FAULTS
            for kind in ("ddp", "torchft") if has_rivals else ():
                rival = measure_rival(
                    kind,
                    workers,
                    fault=fault,
                    count=options.rival_faults,
                    timeout_s=options.timeout_s,
                    python=options.torchft_python,
                )
                others.append(rival)
                print(" | ".join(_rival_row(rival)), flush=True)
    markdown = describe(found, others, timeout_s=options.timeout_s, machine=machine)
    write_results(options.name, markdown, {"machine": machine, "gangline": found, "rivals": others})


if __name__ == "__main__":
    main()
