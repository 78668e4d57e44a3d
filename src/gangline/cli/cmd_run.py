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
from gangline.spec.faults import FaultPlan
from gangline.spec.wire import WireSettings, parse_ports


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
        str | None, typer.Option(help="What moves the gradients: wire, wire-tcp, gloo or nccl.")
    ] = None,
    faults: Annotated[
        Path | None, typer.Option(help="A TOML file of what shall go wrong, to see it survived.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint of the script.")
    ] = False,
    wire_ports: Annotated[
        str | None, typer.Option(help="The ports that workers may listen on, such as 20000-20100.")
    ] = None,
    wire_connections: Annotated[
        int, typer.Option(help="TCP connections per link, where one does not fill it.")
    ] = 1,
    wire_checksum: Annotated[
        bool, typer.Option("--wire-checksum", help="Check what travels by TCP with a CRC.")
    ] = False,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="Encrypt the links between hosts: the certificate (PEM).")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's private key.")] = None,
    tls_authority: Annotated[
        Path | None, typer.Option(help="Who must have signed the peers' certificates.")
    ] = None,
    respawn: Annotated[
        bool, typer.Option("--respawn", help="Start workers again that were killed.")
    ] = False,
    max_respawns: Annotated[
        int, typer.Option(min=1, help="How many, over the whole run, with --respawn.")
    ] = 3,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Go on when a worker ends with an error.")
    ] = False,
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
    plan = FaultPlan() if faults is None else FaultPlan.from_toml(faults)
    plan.check(workers=len(worker_nodes))
    run_name, folder = make_run_dir(script, name=name, run_dir=run_dir, resume=resume)
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
        wire=WireSettings(
            ports=None if wire_ports is None else parse_ports(wire_ports),
            connections=wire_connections,
            checksum=wire_checksum,
            certificate=_absolute(tls_certificate),
            key=_absolute(tls_key),
            authority=_absolute(tls_authority),
        ),
        resume=resume,
        faults=plan,
        respawns=max_respawns if respawn else 0,
        keeps_going=keep_going,
    )
    scale_text = describe_scale(asked, scale=scaled.scale, cores=count_cores())
    if scale_text and not as_json:
        say(scale_text)
    launch(job, show_output=show_output, as_json=as_json)


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())


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
