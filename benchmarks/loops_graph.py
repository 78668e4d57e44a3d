# SPDX-License-Identifier: Apache-2.0
"""Connected components of a real graph by scheme, layout and rule for victims: time and imbalance.

    python benchmarks/loops_graph.py --graph com-dblp --workers 6            # one queue, all schemes
    python benchmarks/loops_graph.py --graph soc-Epinions1 --grid            # every layout and rule

With `--grid`: the thirteen schemes of DAPHNE but for SS (a chunk for each row), and AUTO as its code
has it, in each layout and with each rule for victims. Without: these, and all other schemes (with a
grain: at most 64 chunks for each worker), with one queue. In each repeat all of them run once, in an
order of its own, after one run that is not counted. Workers are pinned. `loops_figures.py` makes
tables and the picture of the results.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

import gangline
from gangline.mapreduce.algorithms.components import largest_near
from gangline.mapreduce.algorithms.reading import read_graph
from gangline.profiling.processors import usable_processors
from gangline.scheduling.schemes.named import SCHEMES
from journal import Journal

DAPHNE = (
    *("STATIC", "GSS", "TSS", "FAC2", "TFSS", "FISS", "VISS", "PLS", "PSS", "MSTATIC", "MFSC"),
    *("AUTO", "daphne:AUTO"),
)
LAYOUTS = ("PERGROUP", "PERCPU")
VICTIMS = ("SEQ", "SEQPRI", "RANDOM", "RANDOMPRI")
FILES = {
    "email-Enron": "email-Enron.txt.gz",
    "soc-Epinions1": "soc-Epinions1.txt.gz",
    "com-dblp": "com-dblp.csv.gz",
}


def components(graph: Any, **options: Any) -> dict[str, Any]:
    """All loops until nothing changes: seconds, mean imbalance, chunks and number of the loops."""
    labels, has_changed, loops = np.arange(1, graph.shape[0] + 1), True, []
    begun = time.perf_counter()
    while has_changed:
        made = gangline.map(
            largest_near, graph, labels, labels, broadcast=(2,), details=True, pin=True, **options
        )
        has_changed = not np.array_equal(made.value, labels)
        labels = made.value
        loops.append(made)
    return {
        "seconds": time.perf_counter() - begun,
        "imbalance": sum(one.imbalance for one in loops) / len(loops),
        "chunks": sum(one.chunks for one in loops) / len(loops),
        "loops": len(loops),
        "components": len(np.unique(labels)),
    }


def cases(*, is_grid: bool, grain: int) -> list[dict[str, Any]]:
    """What is compared, as options of `gangline.map`; `grain` is for schemes that DAPHNE has not."""
    if not is_grid:
        others = [name for name in SCHEMES if name not in (*DAPHNE, "SS")]
        return [
            *({"scheme": name} for name in (*DAPHNE, "expert")),
            *({"scheme": name, "grain": grain} for name in others),
        ]
    several = itertools.product(DAPHNE, LAYOUTS, VICTIMS)
    return [
        *({"scheme": scheme} for scheme in DAPHNE),
        *(
            {"scheme": scheme, "layout": layout, "victim": victim}
            for scheme, layout, victim in several
        ),
    ]


def main() -> None:
    """Measures, and writes each row as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("GANGLINE_DATA", "../shared/data"))
    parser.add_argument("--graph", default="com-dblp", choices=list(FILES))
    parser.add_argument("--grid", action="store_true", help="with every layout and rule")
    parser.add_argument("--workers", type=int, default=usable_processors().count)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", help="these schemes")
    given = parser.parse_args()
    path = Path(given.data) / "graphs" / FILES[given.graph]
    if not path.exists():
        parser.error(f"there is no {path}; give --data, or set GANGLINE_DATA")
    graph = read_graph(path)
    grain = max(1, graph.shape[0] // (64 * given.workers))
    every = cases(is_grid=given.grid, grain=grain)
    if given.only:
        every = [one for one in every if one["scheme"] in given.only]
    journal = Journal(f"loops_graph_{given.graph}{'_grid' if given.grid else ''}")
    journal.add(
        graph=given.graph,
        nodes=graph.shape[0],
        workers=given.workers,
        packages=len(set(usable_processors().packages)),
    )
    components(graph, workers=given.workers, scheme="STATIC")
    for repeat in range(given.repeats):
        for case in random.Random(repeat).sample(every, len(every)):
            found = components(graph, workers=given.workers, **case)
            journal.add(repeat=repeat, **case, **found)
        print(f"{given.graph}: repeat {repeat + 1} of {given.repeats} done", flush=True)


if __name__ == "__main__":
    main()
