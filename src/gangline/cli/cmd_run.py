# SPDX-License-Identifier: Apache-2.0
"""`gangline run`: runs a script by several workers on this machine, alike or not."""

from pathlib import Path
from typing import Annotated

import typer

from gangline.cli.output import JsonFlag, err, out, print_json, say
from gangline.cli.run_end import end_document, print_end
from gangline.cli.run_options import (
    ClusterFlags,
    check_script,
    check_transport,
    make_run_dir,
    parse_shares,
)
from gangline.cli.run_progress import ScreenWatcher
from gangline.emulation.scaling import describe_scale, scale_speeds
from gangline.engines.job import Job, count_cores
from gangline.engines.running import run_job
from gangline.planning.allocation import check_allocation


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command(
        "run",
        # Whatever follows the script belongs to the script, dashes or not.
        context_settings={"allow_interspersed_args": False},
    )(run)


def run(
    script: Annotated[Path, typer.Argument(help="The python script that every worker runs.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Its arguments, passed on untouched.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="How many nodes to emulate.")] = None,
    speeds: Annotated[
        str | None, typer.Option(help="The speed of each node, such as 1,0.5,0.2,0.1.")
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option(help="A TOML file that describes the nodes instead.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Workers per node (1).")] = None,
    shares: Annotated[
        str | None, typer.Option(help="Each worker's part of the batch, such as 10,5,2,1.")
    ] = None,
    allocation: Annotated[
        str | None,
        typer.Option(help="Who gets how much: balanced, equal, random, kqv or kqv-normalised."),
    ] = None,
    transport: Annotated[
        str | None, typer.Option(help="What moves the gradients: wire, wire-tcp or gloo.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The run's name, in runs/NAME.")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="The run folder itself.")] = None,
    show_output: Annotated[
        bool, typer.Option("--show-output", "-o", help="Show what the workers print.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Run a script by several workers on this machine, which may be unlike."""
    check_script(script)
    check_transport(transport)
    if allocation is not None:
        check_allocation(allocation)
    flags = ClusterFlags(nodes=nodes, speeds=speeds, cluster=cluster, workers=workers)
    worker_nodes = flags.resolve().worker_nodes
    asked = [node.speed for node in worker_nodes]
    scaled = scale_speeds(asked, count_cores())
    cut = parse_shares(shares, workers=len(worker_nodes))
    run_name, folder = make_run_dir(script, name=name, run_dir=run_dir)
    job = Job(
        run=run_name,
        run_dir=folder.resolve(),
        script=script.resolve(),
        arguments=tuple(arguments or ()),
        speeds=scaled.speeds,
        scale=scaled.scale,
        nodes=tuple(node.name for node in worker_nodes),
        shares=cut,
        transport=transport,
        allocation=allocation,
    )
    scale_text = describe_scale(asked, scale=scaled.scale, cores=count_cores())
    if scale_text and not as_json:
        say(scale_text)
    launch(job, show_output=show_output, as_json=as_json)


def launch(job: Job, *, show_output: bool, as_json: bool) -> None:
    """Runs a job and tells about it; ends the command with the job's exit code."""
    console = err() if as_json else out()
    with ScreenWatcher(job, console, show_progress=not as_json, show_output=show_output) as watcher:
        result = run_job(job, watcher=watcher)
    if as_json:
        print_json(end_document(job, result))
    else:
        # The output that was shown has the traceback already.
        print_end(job, result, show_traceback=not show_output)
    raise typer.Exit(result.exit_code)
