# SPDX-License-Identifier: Apache-2.0
"""`gangline run`: runs a script by several workers on this machine, alike or not."""

from pathlib import Path
from typing import Annotated

import typer

from gangline.cli.flag_groups import grouped
from gangline.cli.output import JsonFlag, err, out, print_json, say
from gangline.cli.run.compression import compressed
from gangline.cli.run.emulation import enclosed
from gangline.cli.run.end import end_document, print_end
from gangline.cli.run.flags import ClusterFlags, CutFlags, FolderFlags, SurvivalFlags, WireFlags
from gangline.cli.run.options import check_transport
from gangline.cli.run.program import ModuleFlag, ProgramCommand, find_program
from gangline.cli.run.progress import ScreenWatcher
from gangline.cli.run.structure import AUTO, read_structure
from gangline.cli.tls_options import TlsFlags
from gangline.emulation.scaling import describe_scale, scale_speeds
from gangline.engines.job import Job, count_cores
from gangline.engines.running import run_job
from gangline.planning.known import known_profile
from gangline.spec.faults import FaultPlan


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
    cut: CutFlags,
    transport: Annotated[
        str | None, typer.Option(help="What moves the gradients: wire, wire-tcp, gloo or nccl.")
    ] = None,
    structure: Annotated[
        str,
        typer.Option(
            metavar="auto|flat|FILE",
            help="Who exchanges with whom: as planned, all in one ring, or a plan's tree.",
        ),
    ] = AUTO,
    compress: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GROUP=CODEC",
            help="Shorten the gradients that a group of the structure exchanges: top=8-bit.",
        ),
    ] = None,
    faults: Annotated[
        Path | None, typer.Option(help="A TOML file of what shall go wrong, to see it survived.")
    ] = None,
    wire: WireFlags,
    tls: TlsFlags,
    survival: SurvivalFlags,
    place: FolderFlags,
    show_output: Annotated[
        bool,
        typer.Option(
            "--show-output", "-o", help="Show what all workers print, not only the main one."
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Run a script by several workers on this machine, which may be unlike."""
    program = find_program(script, arguments, module, verb="run")
    check_transport(transport)
    tls.check_transport(transport)
    survival.check()
    described = cluster.resolve()
    worker_nodes = described.worker_nodes
    asked = [node.speed for node in worker_nodes]
    scaled = scale_speeds(asked, count_cores())
    shares = cut.resolve(workers=len(worker_nodes))
    tree = compressed(
        read_structure(structure, [node.name for node in worker_nodes]),
        compress or (),
        workers=len(worker_nodes),
        is_planned=structure == AUTO,
    )
    plan = FaultPlan() if faults is None else FaultPlan.from_toml(faults)
    plan.check(workers=len(worker_nodes))
    settings = wire.resolve()
    run_name, folder = place.make(Path(program.name))
    files = tls.resolve(folder, run=run_name, host="127.0.0.1")
    job = Job(
        run=run_name,
        run_dir=folder.resolve(),
        script=program.script,
        module=program.module,
        arguments=program.arguments,
        speeds=scaled.speeds,
        scale=scaled.scale,
        nodes=tuple(node.name for node in worker_nodes),
        shares=shares,
        transport=transport,
        allocation=cut.allocation,
        sync=cut.resolve_sync(transport),
        structure=tree,
        profile=known_profile(described) if structure == AUTO else None,
        wire=settings if files is None else files.applied_to(settings),
        resume=place.resume,
        non_finite=survival.non_finite,
        detector=survival.detector,
        patience_s=survival.patience,
        faults=plan,
        respawns=survival.respawns,
        keeps_going=survival.keep_going,
    )
    scale_text = describe_scale(asked, scale=scaled.scale, cores=count_cores())
    if scale_text and not as_json:
        say(scale_text)
    with enclosed(job, described, has_quotas=cluster.quota) as put:
        launch(put, show_output=show_output, as_json=as_json)


def launch(job: Job, *, show_output: bool, as_json: bool) -> None:
    """Runs a job and tells about it; ends the command with the job's exit code."""
    console = err() if as_json else out()
    with ScreenWatcher(
        job, console, show_progress=not as_json, show_output=show_output, is_quiet=as_json
    ) as screen:
        result = run_job(job, watcher=screen)
    if as_json:
        print_json(end_document(job, result))
    else:
        # The output that was shown has the traceback already.
        is_shown = result.cause is not None and screen.has_shown(result.cause.worker)
        print_end(job, result, show_traceback=not is_shown)
    raise typer.Exit(result.exit_code)
