# SPDX-License-Identifier: Apache-2.0
"""The automated choice beside fixed ones in three real programs, on threads of this machine.

    python benchmarks/loops_cells.py --workers 6 --loops 12 --repeats 3

- `graph`: connected components of soc-Epinions1, whose rows are sparse; all its loops.
- `images`: two-dimensional Fourier transforms of squares of the sizes that photographs have.
- `unlike`: items of heavy-tailed cost, which sleep, on workers of the speeds 1, 0.5, 0.2 and 0.1.

Every fixed choice (scheme, grain, layout) runs three loops, and the best six as often as the automated
one, all in an order that is drawn anew each time. The automated choice begins each time without what it
has learnt. Printed is by how much longer it takes than the best of the six (which was picked by the
first run alone, so that no luck of the later ones is in it).
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

import gangline
from gangline.mapreduce.selecting import forget
from gangline.profiling.processors import usable_processors
from gangline.scheduling.schemes.named import SCHEMES
from gangline.simulation.loops.workloads import make_workload
from journal import Journal
from loops_graph import FILES, components, read_graph
from loops_work import sleep_as_worker, transform

if TYPE_CHECKING:
    from collections.abc import Callable

    Program = Callable[..., float]
    """Seconds of its first loops, as many as asked for, by the options of `gangline.map`."""

SPEEDS = (1.0, 0.5, 0.2, 0.1)
GRAINS = (1, 16)
LAYOUTS = (("CENTRALIZED", "SEQ"), ("PERCPU", "SEQPRI"))
LEFT_OUT = ("SS", "AUTO", "TAP", "AF")
"""With a grain of 1 their many chunks take minutes where rows are cheap."""
FINALISTS, SCREENED_LOOPS = 6, 3
AUTOMATED = {"scheme": "expert"}


def graph_program(data: Path, workers: int) -> Program:
    """Seconds of all loops of connected components."""
    graph = read_graph(data / "graphs" / FILES["soc-Epinions1"])
    return lambda loops, **choice: float(components(graph, workers=workers, **choice)["seconds"])


def images_program(workers: int, loops: int) -> Program:
    """Seconds of loops over squares of unlike sizes, drawn anew for each loop."""
    sides = [
        (96 * np.sqrt(make_workload("image-sizes", 600, mean_s=1.0, seed=seed))).astype(np.int64)
        for seed in range(loops)
    ]
    return lambda loops, **choice: _timed(transform, sides[:loops], workers=workers, **choice)


def unlike_program(workers: int, loops: int) -> Program:
    """Seconds of loops that sleep, each worker by its own speed."""
    speeds = np.resize(SPEEDS, workers)
    costs = [make_workload("heavy-tailed", 400, mean_s=1e-3, seed=seed) for seed in range(loops)]
    return lambda loops, **choice: _timed(
        sleep_as_worker, costs[:loops], speeds, workers=workers, **choice
    )


def _timed(function: Any, every: list[np.ndarray], *others: Any, **options: Any) -> float:
    whole = tuple(range(1, len(others) + 1))
    begun = time.perf_counter()
    for rows in every:
        gangline.map(function, rows, *others, broadcast=whole, **options)
    return time.perf_counter() - begun


def fixed_choices() -> list[dict[str, Any]]:
    """Schemes, grains and layouts, as options of `gangline.map`."""
    named = [
        {"scheme": scheme, "grain": grain, "layout": layout, "victim": victim}
        for scheme, grain, (layout, victim) in itertools.product(SCHEMES, GRAINS, LAYOUTS)
    ]
    return [one for one in named if one["grain"] > 1 or one["scheme"] not in LEFT_OUT]


def compare(cell: str, program: Program, *, loops: int, repeats: int, journal: Journal) -> None:
    """The automated choice and the best fixed ones."""
    first: list[tuple[float, dict[str, Any]]] = []
    every = fixed_choices()
    program(SCREENED_LOOPS, scheme="STATIC")
    for choice in random.Random(cell).sample(every, len(every)):
        first.append((program(SCREENED_LOOPS, **choice), choice))
        journal.add(cell=cell, stage="screening", **choice, seconds=first[-1][0])
    best = [choice for _, choice in sorted(first, key=lambda one: one[0])[:FINALISTS]]
    took: dict[str, list[float]] = {}
    for repeat in range(repeats):
        for choice in random.Random(repeat).sample([*best, AUTOMATED], len(best) + 1):
            forget()
            seconds = program(loops, **choice)
            took.setdefault(" ".join(map(str, choice.values())), []).append(seconds)
            journal.add(cell=cell, stage="comparing", repeat=repeat, **choice, seconds=seconds)
    found = {name: median(some) for name, some in took.items()}
    automated = found.pop(AUTOMATED["scheme"])
    name = min(found, key=lambda one: found[one])
    print(
        f"{cell}: automated {automated:.3f} s, {automated / found[name] - 1:+.1%} of the best fixed "
        f"choice ({name}, {found[name]:.3f} s)",
        flush=True,
    )


def main() -> None:
    """Measures, and writes each row as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("GANGLINE_DATA", "../shared/data"))
    parser.add_argument("--workers", type=int, default=usable_processors().count)
    parser.add_argument("--loops", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=("graph", "images", "unlike"))
    given = parser.parse_args()
    journal = Journal("loops_cells" + (f"_{given.only}" if given.only else ""))
    cells = {
        "graph": lambda: graph_program(Path(given.data), given.workers),
        "images": lambda: images_program(given.workers, given.loops),
        "unlike": lambda: unlike_program(given.workers, given.loops),
    }
    for cell, make in cells.items():
        if given.only in (None, cell):
            compare(cell, make(), loops=given.loops, repeats=given.repeats, journal=journal)


if __name__ == "__main__":
    main()
