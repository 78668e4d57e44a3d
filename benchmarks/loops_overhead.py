# SPDX-License-Identifier: Apache-2.0
"""What a chunk costs: on the threads of one machine, and between the nodes of a job.

    python benchmarks/loops_overhead.py                    # a minute
    python benchmarks/loops_overhead.py --chunks 2000 --repeats 2

A function that does nothing is called for chunks of one row. `alone`: one thread. With several threads
they all ask at once, which is the worst that can happen; that Python runs one of them at a time is in
it. Between nodes: two workers of a job pull ranges of one row; beside it what a message there and
back takes between the same two. Rounds of both follow each other.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import gangline
from gangline.testing import run_workers
from journal import Journal
from loops_overhead_worker import node
from loops_work import nothing

THREADS = (1, 2, 4, 8)
LAYOUTS = ("CENTRALIZED", "PERCPU")
DEADLINE_S = 240.0


def chunk_us(*, threads: int, layout: str, chunks: int) -> tuple[float, float]:
    """Microseconds per chunk: of the whole loop, and of processor time."""
    begun, used = time.perf_counter(), time.process_time()
    gangline.reduce(nothing, range(chunks), scheme="SS", workers=threads, layout=layout)
    took, spent = time.perf_counter() - begun, time.process_time() - used
    return took / chunks * 1e6, spent / chunks * 1e6


def main() -> None:
    """Measures, and writes each row as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    journal = Journal("loops_overhead")
    for repeat in range(given.repeats):
        for threads in THREADS:
            for layout in LAYOUTS:
                wall, spent = chunk_us(threads=threads, layout=layout, chunks=given.chunks)
                journal.add(repeat=repeat, threads=threads, layout=layout, us=wall, cpu_us=spent)
    told = run_workers(
        node, 2, args=(max(100, given.chunks // 50), given.repeats), deadline_s=DEADLINE_S
    )
    for repeat, (pulled_us, back_us) in enumerate(told[1]):
        journal.add(repeat=repeat, between_nodes_us=pulled_us, there_and_back_us=back_us)
    pulled, back = (median(one[place] for one in told[1]) for place in (0, 1))
    print(f"between nodes: {pulled:.0f} µs for a range, {back:.0f} µs there and back", flush=True)


if __name__ == "__main__":
    main()
