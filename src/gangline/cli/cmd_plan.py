# SPDX-License-Identifier: Apache-2.0
"""`gangline plan`: which structure trains fastest on a cluster, and why."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer

from gangline.cli import plan_tree
from gangline.cli.output import JsonFlag, out, print_json
from gangline.planning.cost.serving import compare_served
from gangline.planning.papers.comparison import compare_with_paper
from gangline.planning.pipelines.for_cluster import plan_pipelines
from gangline.planning.planner import GROUPINGS, STRUCTURES, PlanOptions, make_plan
from gangline.planning.synthetic import Shape, synthesize
from gangline.spec.errors import UsageError
from gangline.spec.pipelines import Layout
from gangline.spec.plan import TOPOLOGIES, Plan
from gangline.spec.profile import ClusterProfile
from gangline.spec.workload import Workload

DEFAULT_OUTPUT = Path("plan.json")


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("plan")(plan)


def plan(
    workload: Annotated[
        str,
        typer.Option(
            metavar="FILE|FIELDS",
            help="The job: a TOML or JSON file, or global_batch=256,gradient_bytes=4e6,…",
        ),
    ],
    profile: Annotated[
        Path | None,
        typer.Argument(metavar="PROFILE", help="The cluster, as `gangline probe` writes it."),
    ] = None,
    synthetic: Annotated[
        str | None,
        typer.Option(metavar="SHAPE", help="A made-up cluster: sites=20,racks=50,nodes=100."),
    ] = None,
    grouping: Annotated[str, typer.Option(help=f"One of {', '.join(GROUPINGS)}.")] = "robust",
    structure: Annotated[str, typer.Option(help=f"One of {', '.join(STRUCTURES)}.")] = "auto",
    topologies: Annotated[
        str, typer.Option(help=f"What a group may use, of {', '.join(TOPOLOGIES)}.")
    ] = "ring,parameter-server",
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Show what was rejected, what parameter servers would take, and paper 000's "
            "equations beside the model.",
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option(help="What made-up clusters and random formations are drawn with.")
    ] = 0,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where the plan goes (plan.json; with --json nowhere)."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Choose nodes, groups, topologies and shares for a job, and say why."""
    options = PlanOptions(
        grouping=grouping,
        structure=structure,
        topologies=tuple(name.strip() for name in topologies.split(",")),
    )
    job = _workload(workload)
    cluster = _cluster(profile, synthetic, seed=seed)
    begin = time.perf_counter()
    cut = plan_pipelines(cluster, job)[0] if job.layers else None
    try:
        made = make_plan(cluster, job, rng=np.random.default_rng(seed), options=options)
    except UsageError as error:
        if cut is None:
            raise
        _show_cut_alone(cut, error, output=output, as_json=as_json)
        return
    made = msgspec.structs.replace(made, pipelines=cut)
    planned_in_s = time.perf_counter() - begin
    _write(made, output if as_json else output or DEFAULT_OUTPUT)
    if as_json:
        print_json(made)
    else:
        _show(made, planned_in_s=planned_in_s)
        if compare:
            out().print(plan_tree.draw_alternatives(made), soft_wrap=False)
            served = compare_served(cluster, job, made)
            out().print(plan_tree.draw_served(served, made), soft_wrap=False)
            out().print(plan_tree.served_line(served), markup=False)
            paper = compare_with_paper(cluster, job)
            out().print(plan_tree.paper_line(paper), markup=False)
            out().print(plan_tree.draw_paper(paper), soft_wrap=False)
        out().print(f"plan: {output or DEFAULT_OUTPUT}", markup=False)


def _workload(text: str) -> Workload:
    return Workload.from_text(text) if "=" in text else Workload.from_file(Path(text))


def _cluster(profile: Path | None, synthetic: str | None, *, seed: int) -> ClusterProfile:
    if (profile is None) == (synthetic is None):
        raise UsageError(
            "a plan needs one cluster: name a PROFILE (`gangline probe` writes one), or give "
            "--synthetic sites=2,racks=2,nodes=8; not both"
        )
    if profile is not None:
        return ClusterProfile.from_file(profile)
    return synthesize(Shape.from_text(synthetic or ""), rng=np.random.default_rng(seed))


def _show_cut_alone(cut: Layout, error: UsageError, *, output: Path | None, as_json: bool) -> None:
    """Where no node can hold the whole model, pipelines are all that there is."""
    document = {"pipelines": cut}
    _write(document, output if as_json else output or DEFAULT_OUTPUT)
    if as_json:
        print_json(document)
        return
    for line in plan_tree.pipeline_lines(cut):
        out().print(line, markup=False)
    out().print(f"no plan without pipelines: {error}", markup=False)
    out().print(f"plan: {output or DEFAULT_OUTPUT}", markup=False)


def _write(made: Plan | dict[str, Layout], path: Path | None) -> None:
    if path is None:
        return
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=2))
    except OSError as error:
        raise UsageError(f"cannot write the plan to {path}: {error.strerror}") from error


def _show(made: Plan, *, planned_in_s: float) -> None:
    console = out()
    console.print(plan_tree.draw_tree(made))
    console.print(plan_tree.summary_line(made, planned_in_s=planned_in_s), markup=False)
    for line in plan_tree.reason_lines(made.reasons) + plan_tree.draw_spares(made):
        console.print(line)
    if made.pipelines is not None:
        for text in plan_tree.pipeline_lines(made.pipelines):
            console.print(text, markup=False)
