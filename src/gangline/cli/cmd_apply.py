# SPDX-License-Identifier: Apache-2.0
"""`gangline apply ALGORITHM FILE…`: an algorithm on the rows of a matrix, scheduled as asked."""

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import psutil
import typer

from gangline.cli.output import JsonFlag, print_json, say
from gangline.spec.errors import UsageError

_MOST_SHOWN = 8


class AlgorithmName(StrEnum):
    """What there is."""

    COMPONENTS = "connected-components"
    ADDITION = "matrix-addition"
    REGRESSION = "linear-regression"
    KMEANS = "kmeans"


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Where the seconds went."""

    startup_seconds: float
    reading_seconds: float
    execution_seconds: float
    total_seconds: float


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("apply")(apply)


def apply(
    algorithm: Annotated[AlgorithmName, typer.Argument(help="What to compute.")],
    files: Annotated[
        list[Path],
        typer.Argument(help="A matrix, or a graph as a list of edges: text, .npy, .npz or .mtx."),
    ],
    partitioning: Annotated[
        str | None,
        typer.Option(
            "--partitioning",
            metavar="SCHEME",
            help="How rows are cut: STATIC, GSS, AUTO, … Default: picked by what is measured.",
        ),
    ] = None,
    queue_layout: Annotated[
        str, typer.Option("--queue-layout", help="CENTRALIZED, PERGROUP or PERCPU.")
    ] = "CENTRALIZED",
    victim_selection: Annotated[
        str, typer.Option("--victim-selection", help="SEQ, SEQPRI, RANDOM or RANDOMPRI.")
    ] = "SEQPRI",
    num_threads: Annotated[
        int | None,
        typer.Option("--num-threads", min=1, help="Default: as many processors as may be used."),
    ] = None,
    grain_size: Annotated[
        int, typer.Option("--grain-size", min=1, help="The fewest rows in a chunk.")
    ] = 1,
    pin_workers: Annotated[
        bool, typer.Option("--pin-workers", help="Each thread stays on a processor of its own.")
    ] = False,
    pre_partition: Annotated[
        bool,
        typer.Option("--pre-partition", help="Each queue has one block of rows to itself."),
    ] = False,
    select_matrix_repr: Annotated[
        bool,
        typer.Option("--select-matrix-repr", help="Dense or sparse, by how much is not zero."),
    ] = False,
    clusters: Annotated[
        int | None, typer.Option("--clusters", min=1, help="For kmeans. Default: 8.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option("--iterations", min=1, help="For kmeans. Default: 20.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="For kmeans, and RANDOM.")] = 0,
    timing: Annotated[
        bool, typer.Option("--timing", help="Print the seconds of each stage as JSON.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Compute something on the rows of a matrix, with threads that take chunks as asked."""
    loop: dict[str, Any] = {
        "scheme": partitioning,
        "layout": queue_layout,
        "victim": victim_selection,
        "workers": num_threads,
        "grain": grain_size,
        "pin": pin_workers,
        "pre_partition": pre_partition or queue_layout.upper() == "CENTRALIZED",
        "seed": seed,
    }
    own = {"clusters": clusters, "iterations": iterations}
    loop |= _own_options(algorithm, {key: value for key, value in own.items() if value is not None})
    found, took = _run(algorithm, files, loop, is_selected=select_matrix_repr)
    shown = {key: value for key, value in found.items() if not hasattr(value, "shape")}
    if as_json:
        print_json({**shown, **({"timing": took} if timing else {})})
        return
    for key, value in shown.items():
        say(f"{key.replace('_', ' ')}: {_text(value)}")
    if timing:
        typer.echo(json.dumps(msgspec.to_builtins(took)))


def _own_options(algorithm: AlgorithmName, given: dict[str, int]) -> dict[str, int]:
    """Those of kmeans, which are refused with another algorithm."""
    if given and algorithm != AlgorithmName.KMEANS:
        flags = ", ".join(f"--{name}" for name in given)
        raise UsageError(f"{flags} is for kmeans; leave it out with {algorithm.value}")
    return given


def _run(
    algorithm: AlgorithmName, files: list[Path], loop: dict[str, Any], *, is_selected: bool
) -> tuple[dict[str, Any], Timing]:
    from gangline.mapreduce.algorithms import ALGORITHMS
    from gangline.mapreduce.algorithms.reading import (
        read_graph,
        read_matrix,
        select_representation,
    )

    named = ALGORITHMS[algorithm]
    if len(files) != named.num_files:
        raise UsageError(
            f"{algorithm.value} takes {named.num_files} file(s), not {len(files)}: "
            f"gangline apply {algorithm.value} {' '.join(['FILE'] * named.num_files)}"
        )
    started, begun = psutil.Process().create_time(), time.time()
    read = read_graph if named.is_graph else read_matrix
    matrices = [read(path) for path in files]
    if is_selected:
        matrices = [select_representation(matrix) for matrix in matrices]
    was_read = time.time()
    found = named.run(*matrices, **loop)
    ended = time.time()
    return found, Timing(
        startup_seconds=begun - started,
        reading_seconds=was_read - begun,
        execution_seconds=ended - was_read,
        total_seconds=ended - started,
    )


def _text(value: Any) -> str:
    if isinstance(value, list):
        some = ", ".join(_text(one) for one in value[:_MOST_SHOWN])
        return some + (f", … ({len(value)} in all)" if len(value) > _MOST_SHOWN else "")
    return f"{value:g}" if isinstance(value, float) else str(value)
