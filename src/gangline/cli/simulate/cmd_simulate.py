# SPDX-License-Identifier: Apache-2.0
"""`gangline simulate`: a run on a cluster that exists in a file only."""

import math
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from gangline.cli.flags.detectors import DEFAULT_DETECTOR, DetectorFlag, EverybodyFlag
from gangline.cli.output import EXIT_FAILURE, JsonFlag, out, print_json
from gangline.cli.simulate.replayed import replay_run
from gangline.cli.simulate.survival import Survival, Witness
from gangline.cli.simulate.teams import TeamsSummary, say_bytes, summarize
from gangline.control import ControlOptions
from gangline.control.sync.leasing import HALVES
from gangline.coordinator.detectors import load_detector
from gangline.eventlog import EventWriter, log_path
from gangline.simulation import Course, Scenario, SimulationResult, simulate_teams
from gangline.simulation import simulate as run_simulation
from gangline.spec.errors import UsageError
from gangline.spec.faults import FaultPlan
from gangline.spec.sync import FULL, Sync, parse_sync
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
    epoch_s: list[float]
    """What each epoch took that was ended; empty with so many workers that steps are summed up."""
    samples_per_s: float
    link_bytes: float
    """What was sent over limited links."""
    idle_s: float
    """For how long a worker did not compute, on average."""
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
    ctx: typer.Context,
    cluster: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The cluster: a TOML file of nodes.")
    ] = None,
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
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="How many epochs of --samples each, instead of --steps."),
    ] = None,
    sync: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="How groups keep together: full, none, percentage(0.25), local(16), flexible or auto; "
            "or by parameter servers: bsp, asp, ssp(4), backup(1), asp(servers=2). What the file says, "
            "or full, if not given.",
        ),
    ] = None,
    lease_scheme: Annotated[
        str,
        typer.Option(
            metavar="SCHEME",
            help="How large the parts of an epoch are that groups at their own pace get: halves, or "
            "a scheme such as GSS.",
        ),
    ] = HALVES,
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
    detector: DetectorFlag = DEFAULT_DETECTOR,
    everybody: EverybodyFlag = False,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the event log here, for `gangline report`."),
    ] = None,
    recorded: Annotated[
        Path | None,
        typer.Option(
            "--replay",
            metavar="RUN_DIR",
            help="Instead: put what a real run's coordinator was told through it once more, and "
            "compare what comes of it.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Try out a cluster and an allocation: the same decisions as in a real run, in virtual time."""
    if (cluster is None) == (recorded is None):
        raise UsageError("give --cluster FILE to simulate, or --replay RUN_DIR: one of them")
    if recorded is not None:
        _refuse_others(ctx)
        if not replay_run(recorded, as_json=as_json):
            raise typer.Exit(EXIT_FAILURE)
        return
    assert cluster is not None
    course = Course(
        samples=samples,
        faults=FaultPlan() if faults is None else FaultPlan.from_toml(faults),
        respawns=max_respawns if respawn else 0,
        lease_scheme=lease_scheme,
    )
    scenario = Scenario.from_toml(cluster)
    default_batch = SAMPLES_PER_WORKER * len(scenario.worker_nodes)
    options = ControlOptions(
        global_batch=default_batch if global_batch is None else global_batch,
        allocation=allocation,
        seed=seed,
        detector=load_detector(detector),
        may_exclude=not everybody,
    )
    course.faults.check(workers=len(scenario.worker_nodes))
    mode = parse_sync(scenario.sync if sync is None else sync)
    extent = _Extent.of(steps, epochs=epochs, samples=samples, global_batch=options.global_batch)
    log = None if run_dir is None else log_path(run_dir, "simulator")
    witness = Witness()
    if log is not None:
        witness.sink = _open_log(log, run=cluster.stem, witness=witness)
    job = _Job(scenario, options, course, extent, witness, log)
    try:
        is_in_step = mode.kind == FULL
        summary = _run_in_step(job) if is_in_step else _run_teams(job, mode)
    finally:
        witness.sink.close()
    if as_json:
        print_json(summary)
    elif isinstance(summary, TeamsSummary):
        _print_teams(summary)
    else:
        _print_summary(summary)
    if summary.problem is not None:
        raise typer.Exit(EXIT_FAILURE)


class _Extent(NamedTuple):
    """How long a run is."""

    steps: int
    epochs: int
    samples: int
    """Of an epoch."""

    @classmethod
    def of(
        cls, steps: int, *, epochs: int | None, samples: int | None, global_batch: int
    ) -> "_Extent":
        """What follows from the flags."""
        if epochs is not None and samples is None:
            raise UsageError("--epochs counts epochs of --samples each: give both")
        length = steps * global_batch if samples is None else samples
        steps_per_epoch = max(1, math.ceil(length / global_batch))
        if epochs is not None:
            return cls(epochs * steps_per_epoch, epochs, length)
        return cls(steps, max(1, math.ceil(steps / steps_per_epoch)), length)


class _Job(NamedTuple):
    """What is to be simulated, and who sees it."""

    scenario: Scenario
    options: ControlOptions
    course: Course
    extent: _Extent
    witness: Witness
    log: Path | None

    @property
    def workers(self) -> int:
        """How many there are at the start."""
        return len(self.scenario.worker_nodes)


def _run_in_step(job: _Job) -> SimulationSummary:
    result = run_simulation(
        job.scenario,
        options=job.options,
        steps=job.extent.steps,
        seed=job.options.seed,
        sink=job.witness.write,
        course=job.course,
    )
    return _summary(result, job)


def _run_teams(job: _Job, sync: Sync) -> TeamsSummary:
    samples = job.extent.samples
    result = simulate_teams(
        job.scenario,
        sync,
        options=job.options,
        course=msgspec.structs.replace(job.course, samples=samples),
        epochs=job.extent.epochs,
        sink=job.witness.write,
    )
    return summarize(
        result,
        sync,
        samples=samples,
        options=job.options,
        survival=job.witness.judge(result, length=samples),
        log=job.log,
    )


def _open_log(path: Path, *, run: str, witness: Witness) -> EventWriter:
    if path.exists():
        raise UsageError(f"there is a log already: {path}; give another --run-dir, or remove it")
    return EventWriter(path, run=run, source="simulator", clock=lambda: witness.now)


def _summary(result: SimulationResult, job: _Job) -> SimulationSummary:
    history, options, witness = result.history, job.options, job.witness
    later = msgspec.structs.replace(result, history=history[len(history) // 2 :])
    count = max(len(history), 1)
    return SimulationSummary(
        workers=job.workers,
        steps=len(history),
        global_batch=options.global_batch,
        allocation=options.allocation,
        seed=options.seed,
        wall_s=result.wall_s,
        step_s=sum(step.step_s for step in history) / count,
        optimum_s=sum(step.optimum_s for step in history) / count,
        efficiency=result.efficiency,
        efficiency_second_half=later.efficiency,
        epoch_s=witness.epoch_s,
        samples_per_s=len(history) * options.global_batch / max(result.wall_s, 1e-9),
        link_bytes=result.link_bytes,
        idle_s=result.wall_s - witness.computed_s / job.workers,
        views=list(result.views),
        survival=witness.judge(result, length=job.course.samples),
        problem=result.problem,
        log=None if job.log is None else str(job.log),
    )


def _paced(summary: SimulationSummary) -> list[str]:
    """What can be compared with groups that train at their own pace."""
    said = []
    if len(summary.epoch_s) > 1:
        epochs = ", ".join(f"{seconds:.2f}" for seconds in summary.epoch_s)
        said.append(f"time per epoch: {epochs} s; {summary.samples_per_s:.0f} samples/s")
    if summary.link_bytes:
        said.append(
            f"{say_bytes(summary.link_bytes)} over limited links; a worker did not compute for "
            f"{summary.idle_s:.2f} s on average"
        )
    return said


def _print_teams(summary: TeamsSummary) -> None:
    console = out()
    for line in summary.sentences():
        console.print(Text(line))
    _print_end(summary.problem, summary.log)


def _print_end(problem: str | None, log: str | None) -> None:
    if problem is not None:
        out().print(Text(f"the run ended early: {problem}"))
    if log is not None:
        out().print(Text(f"event log: {log}"))


def _print_summary(summary: SimulationSummary) -> None:
    console = out()
    for line in (
        f"{summary.steps} steps of {summary.workers} workers, global batch {summary.global_batch}, "
        f"{summary.allocation}: {summary.wall_s:.3f} s of virtual time",
        f"a step takes {summary.step_s * 1000:.3f} ms; computing alone could take "
        f"{summary.optimum_s * 1000:.3f} ms: efficiency {summary.efficiency:.3f} "
        f"({summary.efficiency_second_half:.3f} in the second half)",
        *_paced(summary),
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
    _print_end(summary.problem, summary.log)


def _refuse_others(ctx: typer.Context) -> None:
    """A recorded run is what it was: options that would change nothing are refused."""
    sources = {one: ctx.get_parameter_source(one.name or "") for one in ctx.command.params}
    given = [
        one.opts[0] for one, source in sources.items() if source and source.name == "COMMANDLINE"
    ]
    others = [name for name in given if name not in ("--replay", "--json")]
    if others:
        raise UsageError(
            f"--replay puts a run through as it was recorded, so {', '.join(others)} would change "
            "nothing: leave it out, or give --cluster FILE to simulate"
        )
