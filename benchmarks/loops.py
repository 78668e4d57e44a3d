# SPDX-License-Identifier: Apache-2.0
"""`gangline.map`: schemes, layouts and victims on a real graph; what a chunk costs; beside other tools.

- `schemes`: connected components, by every scheme × layout × victim: seconds and imbalance.
- `overhead`: what a chunk costs with 1, 2, 4 and 8 threads, by a function that does nothing.
- `rivals`: the same work by joblib, multiprocessing.Pool and concurrent.futures.

In each repeat all contenders run once, in an order of its own. Graphs are in the folder `graphs` of
`--data` (or GANGLINE_DATA).
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pool
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

import gangline
from gangline.mapreduce.algorithms.components import largest_near
from gangline.mapreduce.algorithms.reading import read_graph
from gangline.profiling.processors import usable_processors
from gangline.scheduling.schemes.named import SCHEMES
from harness import machine_facts
from paced_teams import table, write_results

if TYPE_CHECKING:
    from collections.abc import Callable

LAYOUTS = ("CENTRALIZED", "PERGROUP", "PERCPU")
VICTIMS = ("SEQ", "SEQPRI", "RANDOM", "RANDOMPRI")
PARTS = ("schemes", "overhead", "rivals")
GRAPHS = ("email-Enron.txt.gz", "soc-Epinions1.txt.gz", "com-dblp.csv.gz")
QUICK = ("STATIC", "GSS", "FAC2", "AUTO", "AWF-C")


def rounds(graph: Any, **options: Any) -> tuple[float, float, int]:
    """Connected components: seconds, the mean imbalance of its loops, and chunks per loop."""
    labels, has_changed, loops = np.arange(1, graph.shape[0] + 1), True, []
    begun = time.perf_counter()
    while has_changed:
        made = gangline.map(
            largest_near, graph, labels, labels, broadcast=(2,), details=True, **options
        )
        has_changed = not np.array_equal(made.value, labels)
        labels = made.value
        loops.append(made)
    seconds = time.perf_counter() - begun
    shown = sum(one.imbalance for one in loops) / len(loops)
    return seconds, shown, sum(one.chunks for one in loops) // len(loops)


def cases(schemes: tuple[str, ...]) -> list[dict[str, str]]:
    """Every scheme with one queue, and with each layout of several and each rule for victims."""
    several = itertools.product(schemes, LAYOUTS[1:], VICTIMS)
    return [
        *({"scheme": scheme} for scheme in (*schemes, "expert")),
        *(
            {"scheme": scheme, "layout": layout, "victim": victim}
            for scheme, layout, victim in several
        ),
    ]


def compare_schemes(
    graph: Any, *, schemes: tuple[str, ...], repeats: int, workers: int, grain: int
) -> str:
    """A row for each case, the fastest first."""
    found: dict[str, list[tuple[float, float, int]]] = {}
    every = cases(schemes)
    for _ in range(repeats):
        for case in random.sample(every, len(every)):
            given = case if case["scheme"] == "expert" else {**case, "grain": grain}
            took = rounds(graph, workers=workers, **given)
            found.setdefault(" ".join(case.values()), []).append(took)
    rows = [
        (
            name,
            f"{median(one[0] for one in some):.3f}",
            f"{min(one[0] for one in some):.3f} … {max(one[0] for one in some):.3f}",
            f"{median(one[1] for one in some):.0%}",
            some[0][2],
        )
        for name, some in found.items()
    ]
    rows.sort(key=lambda row: row[1])
    return table(["scheme, layout, victims", "s", "range", "imbalance", "chunks"], rows)


def nothing(rows: Any) -> int:
    """The function whose loop is all overhead."""
    return 0


def chunk_cost(*, threads: int, layout: str, chunks: int) -> tuple[float, float]:
    """Microseconds per chunk: of the whole loop, and of processor time."""
    begun, used = time.perf_counter(), time.process_time()
    gangline.reduce(nothing, range(chunks), scheme="SS", workers=threads, layout=layout)
    took, spent = time.perf_counter() - begun, time.process_time() - used
    return took / chunks * 1e6, spent / chunks * 1e6


def compare_overheads(*, repeats: int, chunks: int) -> str:
    """A row for each number of threads and layout."""
    rows = []
    for threads, layout in itertools.product((1, 2, 4, 8), (LAYOUTS[0], LAYOUTS[2])):
        costs = [chunk_cost(threads=threads, layout=layout, chunks=chunks) for _ in range(repeats)]
        wall, spent = (f"{median(one[place] for one in costs):.1f}" for place in (0, 1))
        rows.append((threads, layout, wall, spent))
    return table(["threads", "layout", "µs per chunk", "of processor time"], rows)


def work(rows: np.ndarray) -> np.ndarray:
    """Unequal rows: each takes as long as its number says."""
    return np.array([np.sort(np.sin(np.arange(int(row)))).sum() for row in rows])


def rivals(data: np.ndarray, *, workers: int) -> tuple[dict[str, Callable[[], Any]], list[str]]:
    """What does the same, by its name; and who is missing, with the reason."""
    blocks = np.array_split(data, 8 * workers)
    found: dict[str, Callable[[], Any]] = {
        "gangline threads, FAC2": lambda: gangline.map(work, data, scheme="FAC2", workers=workers),
        "gangline processes, FAC2": lambda: gangline.map(
            work, data, scheme="FAC2", workers=workers, where="processes"
        ),
        "gangline processes (fork), FAC2": lambda: gangline.map(
            lambda rows: work(rows), data, scheme="FAC2", workers=workers, where="processes"
        ),
        "one thread": lambda: work(data),
        "concurrent.futures threads": lambda: _by_futures(blocks, workers),
        "multiprocessing.Pool": lambda: _by_pool(blocks, workers),
    }
    missing = []
    try:
        from joblib import Parallel, delayed
    except ImportError as error:
        missing.append(f"joblib: {error}")
    else:
        for backend in ("threading", "loky"):
            found[f"joblib {backend}"] = lambda backend=backend: np.concatenate(
                Parallel(n_jobs=workers, backend=backend)(delayed(work)(one) for one in blocks)
            )
    return found, missing


def _by_futures(blocks: list[np.ndarray], workers: int) -> np.ndarray:
    with ThreadPoolExecutor(workers) as pool:
        return np.concatenate(list(pool.map(work, blocks)))


def _by_pool(blocks: list[np.ndarray], workers: int) -> np.ndarray:
    with Pool(workers) as pool:
        return np.concatenate(pool.map(work, blocks))


def compare_rivals(*, repeats: int, workers: int, rows: int) -> str:
    """A row for each, with the start of its processes, if it has some."""
    data = np.random.default_rng(0).integers(100, 4000, rows).astype(float)
    data.sort()
    contenders, missing = rivals(data, workers=workers)
    right = work(data)
    times: dict[str, list[float]] = {}
    for _ in range(repeats):
        for name in random.sample(sorted(contenders), len(contenders)):
            begun = time.perf_counter()
            made = contenders[name]()
            times.setdefault(name, []).append(time.perf_counter() - begun)
            assert np.array_equal(made, right), name
    shown = [
        (name, f"{median(some):.3f}", f"{min(some):.3f} … {max(some):.3f}")
        for name, some in sorted(times.items(), key=lambda item: median(item[1]))
    ]
    absent = "".join(f"\nleft out: {one}\n" for one in missing)
    return table(["who", "s", "range"], shown) + "\n" + absent


def main() -> None:
    """Runs the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("GANGLINE_DATA", "../shared/data"))
    parser.add_argument("--graph", default=GRAPHS[0], choices=GRAPHS)
    parser.add_argument("--part", choices=PARTS, action="append", help="default: all of them")
    parser.add_argument("--workers", type=int, default=usable_processors().count)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--grain", type=int, default=64, help="the fewest rows in a chunk")
    parser.add_argument("--quick", action="store_true", help="few schemes, one repeat")
    options = parser.parse_args()
    repeats = 1 if options.quick else options.repeats
    parts, said = options.part or PARTS, []
    if "schemes" in parts:
        path = Path(options.data) / "graphs" / options.graph
        if not path.exists():
            parser.error(f"there is no {path}; give --data, or set GANGLINE_DATA")
        schemes = QUICK if options.quick else tuple(SCHEMES)
        given = {"repeats": repeats, "workers": options.workers, "grain": options.grain}
        shown = compare_schemes(read_graph(path), schemes=schemes, **given)
        said.append(f"## Connected components of {options.graph}, {given}\n\n{shown}\n")
    if "overhead" in parts:
        shown = compare_overheads(repeats=repeats, chunks=20_000 if options.quick else 200_000)
        said.append(f"## A chunk\n\n{shown}\n")
    if "rivals" in parts:
        rows = 500 if options.quick else 20_000
        shown = compare_rivals(repeats=repeats, workers=options.workers, rows=rows)
        said.append(f"## The same by other tools: {rows} unequal rows\n\n{shown}\n")
    facts = machine_facts()
    write_results("loops", "\n".join(said) + f"\n{facts}\n", {"facts": facts, "text": said})


if __name__ == "__main__":
    main()
