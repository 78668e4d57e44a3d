# SPDX-License-Identifier: Apache-2.0
"""`gangline probe`: measures a cluster for `gangline plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from gangline.cli.output import JsonFlag, err, out, print_json
from gangline.cli.run.program import ModuleFlag, ProgramCommand
from gangline.launch.program import find_program
from gangline.planning.structure.treeplan import duration, size
from gangline.spec.cluster import Cluster
from gangline.spec.errors import UsageError
from gangline.spec.profile import ClusterProfile

if TYPE_CHECKING:
    from gangline.cli.probe.script import ScriptCost
    from gangline.launch.program import Program
    from gangline.profiling.ringfigure import RingFigure

DEFAULT_OUTPUT = Path("profile.json")
FEWEST, MOST = 2, 16
MOST_PAIRS = 12
"""So many links are shown one by one."""


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    # Whatever follows the script belongs to the script, dashes or not.
    settings = {"allow_interspersed_args": False}
    app.command("probe", cls=ProgramCommand, context_settings=settings)(probe)


def probe(
    script: Annotated[
        Path | None,
        typer.Argument(
            metavar="SCRIPT|RUN_DIR",
            help="A script whose own steps are measured, or the folder of a running job.",
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Its arguments, passed on untouched.")
    ] = None,
    *,
    module: ModuleFlag = None,
    cluster: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The emulated cluster: a TOML file of nodes."),
    ] = None,
    speeds: Annotated[
        str | None, typer.Option(help="The emulated cluster: one speed per node, as 1,0.5,0.2.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="What the nodes compute: a model of the zoo.")
    ] = "lenet5",
    image_size: Annotated[
        int, typer.Option(help="The side of the model's images, in pixels.")
    ] = 28,
    ring: Annotated[
        bool, typer.Option("--ring", help="Compare a ring with a parameter server instead.")
    ] = False,
    workers: Annotated[int, typer.Option(help="With --ring: how many processes exchange.")] = 3,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --ring: draw the figure there (SVG).")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where the profile goes (profile.json; with --json: nowhere)."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure computing, memory and links of this machine or of a cluster emulated on it."""
    if ring:
        _probe_ring(workers, plot=plot, as_json=as_json)
        return
    if plot is not None:
        raise UsageError("--plot draws what --ring measures: give --ring too, or leave it out")
    if module is None and script is not None and script.is_dir():
        if cluster is not None or speeds is not None:
            raise UsageError("a running job has its own nodes: leave out --cluster and --speeds")
        _write_and_show(_probe_run(script), output=output, as_json=as_json)
        return
    asked = _asked(cluster, speeds)
    measured = None
    if script is not None or module is not None:
        program = find_program(script, arguments, module, verb="probe")
        measured = _probe_script(program, asked)
    found = _probe_cluster(asked, model=model, image_size=image_size, measured=measured)
    _write_and_show(found, output=output, as_json=as_json, measured=measured)


def _write_and_show(
    found: ClusterProfile,
    *,
    output: Path | None,
    as_json: bool,
    measured: ScriptCost | None = None,
) -> None:
    path = output if as_json else output or DEFAULT_OUTPUT
    if path is not None:
        _write(path, found.to_json())
    if as_json:
        print_json(found)
        return
    _show(found)
    if measured is not None:
        _show_script(measured, found)
    out().print(f"profile: {path}", markup=False)


def _probe_run(run_dir: Path) -> ClusterProfile:
    from gangline.cli.probe.live_job import probe_run

    with err().status("probing") as status:
        return probe_run(run_dir, say=status.update)


def _asked(file: Path | None, speeds: str | None) -> Cluster:
    if file is not None and speeds is not None:
        raise UsageError("--cluster and --speeds both say which nodes there are; leave one out")
    if file is not None:
        return _probeable(Cluster.from_toml(file))
    try:
        return Cluster.of_speeds([float(part) for part in (speeds or "1").split(",")])
    except ValueError as error:
        raise UsageError(
            f"--speeds {speeds}: {error}; write numbers with commas between them, such as 1,0.5,0.2"
        ) from error


def _probeable(cluster: Cluster) -> Cluster:
    for node in cluster.nodes:
        if node.environment:
            raise UsageError(
                f"node {node.name!r} has an environment of its own, and all nodes are probed in this "
                "one: run the job with the cluster file, which measures its workers as they are"
            )
    return cluster


def _probe_script(program: Program, asked: Cluster) -> ScriptCost:
    from gangline.cli.probe.script import measure_script

    with err().status("probing") as status:
        return measure_script(program, num_workers=len(asked.worker_nodes), say=status.update)


def _show_script(measured: ScriptCost, found: ClusterProfile) -> None:
    room = found.nodes[0].memory_bytes or 0
    out().print(
        f"memory: the script used {size(measured.peak_bytes)} at most; a worker has {size(room)}",
        markup=False,
    )
    out().print(f"workload: {measured.workload}", markup=False)


def _probe_cluster(
    asked: Cluster, *, model: str, image_size: int, measured: ScriptCost | None
) -> ClusterProfile:
    from gangline.profiling.clusterprobe import probe_cluster

    with err().status("probing") as status:
        try:
            return probe_cluster(
                asked,
                model=model if measured is None else "the script",
                image_size=image_size,
                say=status.update,
                cost=None if measured is None else measured.compute,
            )
        except ValueError as error:
            raise UsageError(str(error)) from error


def _probe_ring(workers: int, *, plot: Path | None, as_json: bool) -> None:
    from gangline.profiling.lineplot import draw_lines
    from gangline.profiling.ringfigure import measure_figure

    if not FEWEST <= workers <= MOST:
        raise UsageError(f"--workers must be {FEWEST} to {MOST} with --ring, not {workers}")
    with err().status("probing") as status:
        figure = measure_figure(workers, say=status.update)
    if plot is not None:
        title = f"all-reduce among {workers} processes, L2 cache {size(figure.cache_bytes)}"
        svg = draw_lines(figure.series(), title=title, x="bytes", y="seconds")
        _write(plot, svg.encode())
    if as_json:
        print_json(figure)
    else:
        out().print(_figure_table(figure), soft_wrap=False)


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _show(profile: ClusterProfile) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("node", "fixed", "per sample", "spread", "memory", "L2 cache"):
        table.add_column(heading, no_wrap=True)
    for node in profile.nodes:
        table.add_row(
            Text(node.name),
            duration(node.fixed_s),
            duration(node.per_sample_s),
            f"{node.spread:.0%}",
            "-" if node.memory_bytes is None else size(node.memory_bytes),
            "-" if node.cache_bytes is None else size(node.cache_bytes),
        )
    out().print(table, soft_wrap=False)
    for zone in profile.zones:
        link = zone.link
        out().print(
            f"links{f' in {zone.place}' if zone.place else ''}: {duration(link.latency_s)}, "
            f"{size(link.bytes_per_s)}/s (spread {link.spread:.0%})",
            markup=False,
        )
    for pair in profile.pairs[:MOST_PAIRS]:
        worst = pair.worst
        out().print(
            f"{pair.source} to {pair.target}: {duration(worst.latency_s)}, "
            f"{size(worst.bytes_per_s)}/s (spread {worst.spread:.0%})",
            markup=False,
        )
    if len(profile.pairs) > MOST_PAIRS:
        out().print(f"… and {len(profile.pairs) - MOST_PAIRS} more pairs", markup=False)


def _figure_table(figure: RingFigure) -> Table:
    title = f"{figure.workers} processes, L2 cache {size(figure.cache_bytes)}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("message")
    for heading in ("ring, inside L2", "ring, outside L2", "parameter server", "server / ring"):
        table.add_column(heading, justify="right")
    for row in figure.rows:
        best = min(row.inside_s, row.outside_s)
        times = (row.inside_s, row.outside_s, row.server_s)
        table.add_row(size(row.num_bytes), *map(duration, times), f"{row.server_s / best:.2f}")
    return table
