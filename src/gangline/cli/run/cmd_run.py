# SPDX-License-Identifier: Apache-2.0
"""`gangline run`: runs a script by several workers, alike or not, here or on other machines."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from gangline.cli.flags.engines.mpi import MpiFlags
from gangline.cli.flags.engines.ray import RayFlags
from gangline.cli.flags.engines.slurm import SlurmFlags
from gangline.cli.flags.engines.spark import SparkFlags
from gangline.cli.flags.groups import grouped
from gangline.cli.flags.tls_options import TlsFlags
from gangline.cli.output import JsonFlag, err, out, print_json, say
from gangline.cli.pages import report_at_end
from gangline.cli.run.configuring import configured
from gangline.cli.run.end import end_document, print_end
from gangline.cli.run.exporting import ToolFlags, exported
from gangline.cli.run.flags import (
    ClusterFlags,
    ExchangeFlags,
    FolderFlags,
    HostFlags,
    SurvivalFlags,
)
from gangline.cli.run.program import ModuleFlag, ProgramCommand
from gangline.cli.run.progress import Greeting, ScreenWatcher
from gangline.engines.engine import Engine
from gangline.engines.job import Job
from gangline.engines.running import run_job
from gangline.engines.supervision import Watcher
from gangline.files.config import shown
from gangline.launch.engines import find_engine
from gangline.launch.engines.kind import Tell, silent
from gangline.launch.program import find_program
from gangline.observe.exporters import Target


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command(
        "run",
        cls=ProgramCommand,
        # Whatever follows the script belongs to the script, dashes or not.
        context_settings={"allow_interspersed_args": False},
    )(grouped(run))


def run(
    script: Annotated[
        Path | None, typer.Argument(help="The python script that every worker runs.")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Its arguments, passed on untouched.")
    ] = None,
    *,
    module: ModuleFlag = None,
    cluster: ClusterFlags,
    exchange: ExchangeFlags,
    tls: TlsFlags,
    survival: SurvivalFlags,
    hosts: HostFlags,
    mpi: MpiFlags,
    slurm: SlurmFlags,
    ray: RayFlags,
    spark: SparkFlags,
    place: FolderFlags,
    tools: ToolFlags,
    show_output: Annotated[
        bool,
        typer.Option(
            "--show-output", "-o", help="Show what all workers print, not only the main one."
        ),
    ] = False,
    report: Annotated[
        bool,
        typer.Option("--report/--no-report", help="Write report.html into the run folder."),
    ] = True,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Show nothing but why a job failed, and where it is."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Run a script by several workers, which may be unlike: on this machine, or on others."""
    program = find_program(script, arguments, module, verb="run")
    config = configured(
        place.config,
        exchange,
        survival,
        hosts,
        mpi,
        slurm,
        ray,
        spark,
        place,
        cluster=cluster,
        tls=tls,
    )
    hosts.check(cluster, on=config.on)
    targets = tools.targets()
    if place.dry_run:
        typer.echo(shown(config))
        return
    engine = find_engine(config.on)
    engine.check(config)
    tell = _teller(as_json=as_json, is_quiet=quiet)
    submitted = engine.submit(config, program, run_dir=place.run_dir, tell=tell)
    if submitted is not None:
        _say_submitted(submitted, as_json=as_json)
        return
    with engine.prepared(config, program, run_dir=place.run_dir, tell=tell) as found:
        launch(
            found.job,
            show_output=show_output,
            is_quiet=quiet,
            targets=targets,
            as_json=as_json,
            with_report=report,
            make_engine=found.make_engine,
        )


def _teller(*, as_json: bool, is_quiet: bool) -> Tell:
    """Where it is said what delays or changes a run: not into a JSON document."""
    if is_quiet:
        return silent
    return lambda line: (err() if as_json else out()).print(Text(line))


def _say_submitted(said: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"status": "submitted", "reason": said})
    else:
        say(said)


def launch(
    job: Job,
    *,
    show_output: bool,
    as_json: bool,
    is_quiet: bool = False,
    targets: Sequence[Target] = (),
    greeting: Greeting = lambda: (),
    with_report: bool = False,
    make_engine: Callable[[Watcher], Engine] | None = None,
    left_exit_code: int = 0,
) -> None:
    """Runs a job and tells about it; ends the command with the job's exit code.

    The `greeting` is shown as soon as it says something. One that `is_quiet` tells how it ended where
    that was not well. The `left_exit_code` is that of workers that left because this machine ends.
    """
    console = err() if as_json else out()
    with (
        ScreenWatcher(
            job,
            console,
            show_progress=not (as_json or is_quiet),
            show_output=show_output,
            is_quiet=as_json or is_quiet,
            greeting=greeting,
        ) as screen,
        exported(job, targets) as ending,
    ):
        result = run_job(job, watcher=screen, make_engine=make_engine)
        ending.status = result.status
    if as_json:
        print_json(end_document(job, result, with_report=with_report))
    elif is_quiet and result.exit_code == 0:
        if with_report:
            report_at_end(job.run_dir)
    else:
        # The output that was shown has the traceback already.
        is_shown = result.cause is not None and screen.has_shown(result.cause.worker)
        print_end(job, result, show_traceback=not is_shown, with_report=with_report)
    has_left = result.has_departed and result.exit_code == 0
    raise typer.Exit(left_exit_code if has_left else result.exit_code)
