# SPDX-License-Identifier: Apache-2.0
"""`gangline simulate`: a run on a cluster that exists in a file only."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from gangline.cli.output import EXIT_FAILURE, JsonFlag, out, print_json
from gangline.cli.survival import Survival, Witness
from gangline.control import ControlOptions
from gangline.eventlog import EventWriter, log_path
from gangline.simulation import Course, Scenario, SimulationResult
from gangline.simulation import simulate as run_simulation
from gangline.spec.errors import UsageError
from gangline.spec.faults import FaultPlan
from gangline.spec.view import View

SAMPLES_PER_WORKER = 64
MAX_SHOWN_SHARES = 8


class SimulationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What `gangline simulate --json` prints."""

    workers: int
    steps: int
    global_batch: int
    allocation: str
    seed: int
    wall_s: float
    """Virtual seconds."""
    step_s: float
    """The mean step."""
    optimum_s: float
    """The mean of the compute-only optimum."""
    efficiency: float
    """`optimum_s` / `step_s`."""
    efficiency_second_half: float
    """The same, when the start is over."""
    views: list[View]
    survival: Survival
    """What became of the faults, and of the samples."""
    problem: str | None
    """Why the run ended before its last step, where it did."""
    log: str | None
    """The event log, where one was written."""


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("simulate")(simulate)


def simulate(
    cluster: Annotated[
        Path, typer.Option(metavar="FILE", help="The cluster: a TOML file with [[nodes]].")
    ],
    steps: Annotated[int, typer.Option(help="How many steps to simulate.")] = 1000,
    global_batch: Annotated[
        int | None,
        typer.Option(
            help=f"Samples per step, over all workers; {SAMPLES_PER_WORKER} each if not given."
        ),
    ] = None,
    allocation: Annotated[str, typer.Option(help="How the global batch is cut.")] = "balanced",
    seed: Annotated[int, typer.Option(help="What noise and random cuts are drawn with.")] = 0,
    samples: Annotated[
        int | None,
        typer.Option(help="Samples per epoch; the whole run is one epoch if not given."),
    ] = None,
    faults: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A fault plan (TOML): what goes wrong, and when."),
    ] = None,
    respawn: Annotated[
        bool, typer.Option("--respawn", help="Start workers again that were killed.")
    ] = False,
    max_respawns: Annotated[
        int, typer.Option(min=1, help="How many, over the whole run, with --respawn.")
    ] = 3,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the event log here, for `gangline report`."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Try out a cluster and an allocation: the same decisions as in a real run, in virtual time."""
    course = Course(
        samples=samples,
        faults=FaultPlan() if faults is None else FaultPlan.from_toml(faults),
        respawns=max_respawns if respawn else 0,
    )
    scenario = Scenario.from_toml(cluster)
    default_batch = SAMPLES_PER_WORKER * len(scenario.worker_nodes)
    options = ControlOptions(
        global_batch=default_batch if global_batch is None else global_batch,
        allocation=allocation,
        seed=seed,
    )
    course.faults.check(workers=len(scenario.worker_nodes))
    log = None if run_dir is None else log_path(run_dir, "simulator")
    witness = Witness()
    if log is not None:
        witness.sink = _open_log(log, run=cluster.stem, witness=witness)
    try:
        result = run_simulation(
            scenario, options=options, steps=steps, seed=seed, sink=witness.write, course=course
        )
    finally:
        witness.sink.close()
    survival = witness.judge(result, length=samples)
    summary = _summary(
        result, workers=len(scenario.worker_nodes), options=options, survival=survival, log=log
    )
    if as_json:
        print_json(summary)
    else:
        _print_summary(summary)
    if result.problem is not None:
        raise typer.Exit(EXIT_FAILURE)


def _open_log(path: Path, *, run: str, witness: Witness) -> EventWriter:
    if path.exists():
        raise UsageError(f"there is a log already: {path}; give another --run-dir, or remove it")
    return EventWriter(path, run=run, source="simulator", clock=lambda: witness.now)


def _summary(
    result: SimulationResult,
    *,
    workers: int,
    options: ControlOptions,
    survival: Survival,
    log: Path | None,
) -> SimulationSummary:
    history = result.history
    later = msgspec.structs.replace(result, history=history[len(history) // 2 :])
    count = max(len(history), 1)
    return SimulationSummary(
        workers=workers,
        steps=len(history),
        global_batch=options.global_batch,
        allocation=options.allocation,
        seed=options.seed,
        wall_s=result.wall_s,
        step_s=sum(step.step_s for step in history) / count,
        optimum_s=sum(step.optimum_s for step in history) / count,
        efficiency=result.efficiency,
        efficiency_second_half=later.efficiency,
        views=list(result.views),
        survival=survival,
        problem=result.problem,
        log=None if log is None else str(log),
    )


def _print_summary(summary: SimulationSummary) -> None:
    console = out()
    for line in (
        f"{summary.steps} steps of {summary.workers} workers, global batch {summary.global_batch}, "
        f"{summary.allocation}: {summary.wall_s:.3f} s of virtual time",
        f"a step takes {summary.step_s * 1000:.3f} ms; computing alone could take "
        f"{summary.optimum_s * 1000:.3f} ms: efficiency {summary.efficiency:.3f} "
        f"({summary.efficiency_second_half:.3f} in the second half)",
        *summary.survival.sentences(),
    ):
        console.print(Text(line))
    table = Table(box=None, pad_edge=False)
    for column in ("view", "shares", "reason"):
        table.add_column(column, no_wrap=column == "view")
    for view in summary.views:
        shown = " ".join(map(str, view.shares[:MAX_SHOWN_SHARES]))
        more = " …" if len(view.shares) > MAX_SHOWN_SHARES else ""
        table.add_row(str(view.number), Text(shown + more), Text(view.reason))
    console.print(table, soft_wrap=False)
    if summary.problem is not None:
        console.print(Text(f"the run ended early: {summary.problem}"))
    if summary.log is not None:
        console.print(Text(f"event log: {summary.log}"))
