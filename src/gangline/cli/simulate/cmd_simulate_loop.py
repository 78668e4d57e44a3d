# SPDX-License-Identifier: Apache-2.0
"""`gangline simulate-loop`: what each way of handing out a loop would take, in virtual time."""

from itertools import product
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from gangline.cli.output import JsonFlag, out, print_json
from gangline.scheduling import Choice, Layout
from gangline.scheduling.schemes.named import SCHEMES
from gangline.scheduling.victims import VICTIMS
from gangline.simulation.loops import (
    WORKLOADS,
    Compared,
    Crowd,
    Overheads,
    Program,
    estimated_speeds,
    read_records,
    recorded_costs,
    run_automated,
    run_fixed,
    run_two_levels,
    summed_up,
)
from gangline.simulation.loops.workloads import Costs
from gangline.spec.errors import UsageError
from gangline.spec.usercode import load_named

AUTOMATED = "automated"


class LoopComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What `gangline simulate-loop --json` prints."""

    workload: str
    items: int
    workers: int
    loops: int
    ideal_s: float
    """Per loop, if all of the workers' speed went into the items."""
    best: str
    """The fixed choice that took the shortest time."""
    choices: list[Compared]
    """The shortest time first."""
    automated: Compared | None
    """What it would have taken to pick the choice while it runs; not with two levels."""
    decisions: list[str]


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("simulate-loop")(simulate_loop)


def simulate_loop(
    workload: Annotated[
        str | None,
        typer.Option(help=f"What items cost: {', '.join(WORKLOADS)}; uniform if not given."),
    ] = None,
    recorded: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead: a loop that was done, JSON lines with start, stop, worker, seconds.",
        ),
    ] = None,
    items: Annotated[int, typer.Option(min=1, help="How many items a loop has.")] = 2000,
    mean_s: Annotated[float, typer.Option(help="What an item takes on average.")] = 1e-3,
    speeds: Annotated[
        str | None,
        typer.Option(metavar="S,S,…", help="The workers' speeds; 1,1,1,1 if not given."),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(metavar="G,G,…", help="The group of each worker (package, node): 0,0,1,1."),
    ] = None,
    noise: Annotated[float, typer.Option(help="How much speeds vary: σ of their logarithm.")] = 0.0,
    pauses: Annotated[
        float, typer.Option(help="How likely a pause of 0.2 s begins, per 50 ms.")
    ] = 0.0,
    scheme: Annotated[
        list[str] | None, typer.Option(help="A scheme to compare, many times; all if not given.")
    ] = None,
    layout: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(Layout)}; all if not given.")
    ] = None,
    victims: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(VICTIMS)}; all if not given.")
    ] = None,
    grain: Annotated[list[int] | None, typer.Option(help="The smallest chunk; 1.")] = None,
    between: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEME",
            help="Two levels: the scheme between groups; those that are compared are inside them.",
        ),
    ] = None,
    between_s: Annotated[
        float, typer.Option(help="What it takes a group to get a chunk, with --between.")
    ] = 1e-3,
    chunk_s: Annotated[float, typer.Option(help="What each chunk costs.")] = 20e-6,
    queue_s: Annotated[
        float, typer.Option(help="For how long its queue serves nobody else.")
    ] = 2e-6,
    steal_s: Annotated[float, typer.Option(help="What stealing costs more.")] = 10e-6,
    far_steal_s: Annotated[
        float, typer.Option(help="What stealing from another group costs more.")
    ] = 30e-6,
    remote: Annotated[
        float, typer.Option(help="How much longer items take in another group than their data's.")
    ] = 0.0,
    loops: Annotated[int, typer.Option(min=1, help="How many loops, one after the other.")] = 5,
    seed: Annotated[int, typer.Option(help="What noise and items are drawn with.")] = 0,
    rows: Annotated[
        int, typer.Option(min=1, help="How many rows are printed, the best first.")
    ] = 20,
    as_json: JsonFlag = False,
) -> None:
    """Compare all ways of handing out a loop: scheme, layout of the queues, whom to steal from."""
    if recorded is not None and workload is not None:
        raise UsageError("give --workload, or --recorded FILE: one of them")
    overheads = Overheads(
        chunk_s=chunk_s, queue_s=queue_s, steal_s=steal_s, far_steal_s=far_steal_s, remote=remote
    )
    costs, known = (None, None) if recorded is None else _read(recorded, speeds)
    crowd = Crowd(
        speeds=known or _numbers(speeds, "--speeds") or (1.0,) * 4,
        groups=tuple(int(one) for one in _numbers(groups, "--groups")),
        noise=noise,
        pause_probability=pauses,
    )
    program = Program(
        crowd=crowd,
        overheads=overheads,
        loops=loops,
        seed=seed,
        workload=workload or "uniform",
        items=items if costs is None else len(costs),
        mean_s=mean_s,
        costs=costs,
    )
    choices = _choices(
        scheme or list(SCHEMES), layout or list(Layout), victims or list(VICTIMS), grain or [1]
    )
    outer = None if between is None else Choice.parse(between, load=_load)
    found = _compare(program, choices, outer=outer, between_s=between_s)
    name = program.workload if recorded is None else str(recorded)
    comparison = _sum_up(program, found, name=name, is_flat=outer is None)
    print_json(comparison) if as_json else _print(comparison, rows=rows)


def _load(text: str) -> object:
    return load_named(text, what="scheme or victim rule")


def _numbers(text: str | None, flag: str) -> tuple[float, ...]:
    try:
        return tuple(float(one) for one in (text or "").split(",") if one.strip())
    except ValueError:
        raise UsageError(
            f"{flag} {text}: write numbers with commas between, such as 1,0.5"
        ) from None


def _read(path: Path, speeds: str | None) -> tuple[Costs, tuple[float, ...]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    records = read_records(lines, path=str(path))
    known = _numbers(speeds, "--speeds") or estimated_speeds(records)
    return recorded_costs(records, known), known


def _choices(
    schemes: list[str], layouts: list[str], victims: list[str], grains: list[int]
) -> list[Choice]:
    """All combinations; with one queue nobody steals."""
    found = [
        Choice.parse(scheme, grain=grain, layout=layout, victims=rule, load=_load)
        for scheme, grain, layout, rule in product(schemes, grains, layouts, victims)
    ]
    return list({str(choice): choice for choice in found}.values())


def _compare(
    program: Program, choices: list[Choice], *, outer: Choice | None, between_s: float
) -> list[Compared]:
    found = []
    for choice in choices:
        if outer is None:
            found.append(summed_up(run_fixed(program, choice), choice))
        else:
            results = run_two_levels(program, outer, choice, between_s=between_s)
            name = f"{outer.scheme} between groups, {choice} inside"
            found.append(summed_up(results, choice, name=name))
    return sorted(found, key=lambda one: (one.time_s, one.choice))


def _sum_up(program: Program, found: list[Compared], *, name: str, is_flat: bool) -> LoopComparison:
    work_s = sum(float(program.costs_of(loop).sum()) for loop in range(program.loops))
    automated, decisions = None, []
    if is_flat:
        results, advices = run_automated(program)
        automated = summed_up(results, None, name=AUTOMATED)
        decisions = [
            f"loop {one.loop}{', within' if one.is_within else ''}: {one.choice}: {one.reason}"
            for one in advices
        ]
    return LoopComparison(
        workload=name,
        items=program.items,
        workers=program.workers,
        loops=program.loops,
        ideal_s=work_s / program.loops / sum(program.crowd.speeds),
        best=found[0].choice,
        choices=found,
        automated=automated,
        decisions=decisions,
    )


def _print(comparison: LoopComparison, *, rows: int) -> None:
    console, best = out(), comparison.choices[0]
    console.print(
        Text(
            f"{comparison.items} items ({comparison.workload}), {comparison.workers} workers, mean of "
            f"{comparison.loops} loops; if nobody ever waited: {comparison.ideal_s:.4g} s"
        )
    )
    table = Table("choice", "time", "imbalance", "chunks", "steals", "overhead")
    automated = [comparison.automated] if comparison.automated is not None else []
    for one in [*comparison.choices[:rows], *automated]:
        table.add_row(
            Text(one.choice),
            f"{one.time_s:.4g} s",
            f"{one.imbalance:.1%}",
            f"{one.chunks:.0f}",
            f"{one.steals:.0f}",
            f"{one.overhead_s:.3g} s",
        )
    console.print(table)
    worst = comparison.choices[-1]
    lines = [
        f"best: {best.choice}; the worst of {len(comparison.choices)}, {worst.choice}, would take "
        f"{worst.time_s / best.time_s:.2f} times as long"
    ]
    if comparison.automated is not None:
        behind = comparison.automated.time_s / best.time_s - 1
        lines.append(f"picked while it runs: {behind:+.1%} beside the best, known only afterwards")
        lines += comparison.decisions
    for line in lines:
        console.print(Text(line))
