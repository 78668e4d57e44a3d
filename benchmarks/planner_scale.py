# SPDX-License-Identifier: Apache-2.0
"""How long planning takes and how much memory, from 10 to 100,000 nodes, and how it grows.

    python benchmarks/planner_scale.py [--json]

Each size runs in a process of its own, so that its peak memory is its own. Exits with 1 if 10,000 nodes
take more than 1 second, or 100,000 more than 10 seconds or 4 GiB.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import numpy as np

from gangline.planning.planner import make_plan
from gangline.planning.synthetic import Shape, synthesize
from gangline.spec.workload import Workload

SHAPES = {
    10: Shape(sites=1, racks=2, nodes=5),
    100: Shape(sites=2, racks=5, nodes=10),
    1_000: Shape(sites=2, racks=10, nodes=50),
    10_000: Shape(sites=4, racks=25, nodes=100),
    100_000: Shape(sites=20, racks=50, nodes=100),
}
LIMITS_S = {10_000: 1.0, 100_000: 10.0}
LIMIT_BYTES = 4 << 30
REPEATS = 3


def measure(count: int) -> dict[str, float]:
    """The best of a few runs, and this process's peak memory."""
    profile = synthesize(SHAPES[count], rng=np.random.default_rng(1))
    workload = Workload(global_batch=64 * count, gradient_bytes=1e8)
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        plan = make_plan(profile, workload, rng=np.random.default_rng(0))
        times.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"nodes": count, "wall_s": min(times), "peak_bytes": peak, "used": len(plan.nodes)}


def measure_apart(count: int) -> dict[str, float]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--one", str(count)]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def growth(rows: list[dict[str, float]]) -> float:
    """The exponent of n from 1,000 nodes on: 1 is linear."""
    large = [row for row in rows if row["nodes"] >= 1000]
    logs = [np.log([row[key] for row in large]) for key in ("nodes", "wall_s")]
    return float(np.polyfit(*logs, 1)[0])


def main() -> int:
    """Prints what was measured; 0 if it was within the limits."""
    if "--one" in sys.argv:
        print(json.dumps(measure(int(sys.argv[-1]))))
        return 0
    rows = [measure_apart(count) for count in SHAPES]
    exponent = growth(rows)
    if "--json" in sys.argv:
        print(json.dumps({"rows": rows, "growth_exponent": exponent}, indent=2))
    else:
        print("| nodes | planning | peak memory | nodes used |\n|---|---|---|---|")
        for row in rows:
            print(
                f"| {row['nodes']:,} | {row['wall_s']:.3f} s | {row['peak_bytes'] / 2**20:.0f} MiB "
                f"| {row['used']:,} |"
            )
        print(f"\ngrowth exponent from 1,000 nodes on: {exponent:.2f}")
    late = [row for row in rows if row["wall_s"] > LIMITS_S.get(int(row["nodes"]), np.inf)]
    return 1 if late or rows[-1]["peak_bytes"] > LIMIT_BYTES else 0


if __name__ == "__main__":
    sys.exit(main())
