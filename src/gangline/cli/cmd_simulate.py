# SPDX-License-Identifier: Apache-2.0
"""`gangline simulate`: a run on a cluster that exists in a file only."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from gangline.cli.output import JsonFlag, out, print_json
from gangline.control import ControlOptions
from gangline.eventlog import EventSink, EventWriter, NullWriter, log_path
from gangline.simulation import Scenario, SimulationResult
from gangline.simulation import simulate as run_simulation
from gangline.simulation.clock import VirtualClock
from gangline.spec.errors import UsageError
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
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the event log here, for `gangline report`."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Try out a cluster and an allocation: the same decisions as in a real run, in virtual time."""
    scenario = Scenario.from_toml(cluster)
    default_batch = SAMPLES_PER_WORKER * len(scenario.worker_nodes)
    options = ControlOptions(
        global_batch=default_batch if global_batch is None else global_batch,
        allocation=allocation,
        seed=seed,
    )
    clock = VirtualClock()
    log = None if run_dir is None else log_path(run_dir, "simulator")
    sink = _open_log(log, run=cluster.stem, clock=clock)
    try:
        result = run_simulation(
            scenario, options=options, steps=steps, seed=seed, sink=sink.write, clock=clock
        )
    finally:
        sink.close()
    summary = _summary(result, scenario=scenario, options=options, log=log)
    if as_json:
        print_json(summary)
    else:
        _print_summary(summary)


def _open_log(path: Path | None, *, run: str, clock: VirtualClock) -> EventSink:
    if path is None:
        return NullWriter()
    if path.exists():
        raise UsageError(f"there is a log already: {path}; give another --run-dir, or remove it")
    return EventWriter(path, run=run, source="simulator", clock=lambda: clock.now)


def _summary(
    result: SimulationResult, *, scenario: Scenario, options: ControlOptions, log: Path | None
) -> SimulationSummary:
    history = result.history
    later = msgspec.structs.replace(result, history=history[len(history) // 2 :])
    return SimulationSummary(
        workers=len(scenario.worker_nodes),
        steps=len(history),
        global_batch=options.global_batch,
        allocation=options.allocation,
        seed=options.seed,
        wall_s=result.wall_s,
        step_s=sum(step.step_s for step in history) / len(history),
        optimum_s=sum(step.optimum_s for step in history) / len(history),
        efficiency=result.efficiency,
        efficiency_second_half=later.efficiency,
        views=list(result.views),
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
    if summary.log is not None:
        console.print(Text(f"event log: {summary.log}"))
