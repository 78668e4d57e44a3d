# SPDX-License-Identifier: Apache-2.0
"""How fast the simulator is: 1,000 steps of 10,000 unlike workers, on one core.

    python benchmarks/simulator_scale.py [--json]

Exits with 1 if it takes more than ten seconds.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from gangline.control import ControlOptions
from gangline.simulation import Scenario, SimulationResult, simulate
from gangline.simulation.scenario import SimulatedNode, Throttle

WORKERS = 10_000
STEPS = 1_000
LIMIT_S = 10.0


def cluster() -> Scenario:
    """Workers a factor of ten apart, one in a hundred of which is throttled for a while."""
    speeds = 10 ** np.random.default_rng(1).uniform(-1, 0, WORKERS)
    throttle = Throttle(from_step=400, to_step=600, factor=3.0)
    nodes = tuple(
        SimulatedNode(
            name=f"n{i}", speed=float(speed), throttles=(throttle,) if i % 100 == 0 else ()
        )
        for i, speed in enumerate(speeds)
    )
    return Scenario(nodes=nodes, noise=0.05, first_step_factors=(5.0, 2.0))


def measure() -> tuple[float, int, SimulationResult]:
    """Seconds, events, and the result of one run."""
    scenario = cluster()
    events: list[object] = []
    begin = time.perf_counter()
    result = simulate(
        scenario,
        options=ControlOptions(global_batch=64 * WORKERS),
        steps=STEPS,
        sink=events.append,
    )
    return time.perf_counter() - begin, len(events), result


def main() -> int:
    """Prints what was measured; 0 if it was fast enough."""
    wall_s, events, result = measure()
    figures = {
        "workers": WORKERS,
        "steps": STEPS,
        "wall_s": round(wall_s, 2),
        "limit_s": LIMIT_S,
        "steps_per_s": round(STEPS / wall_s, 1),
        "events": events,
        "views": len(result.views),
        "efficiency": round(result.efficiency, 3),
        "median_efficiency_without_noise": round(
            float(np.median([step.optimum_s / step.model_s for step in result.history])), 3
        ),
    }
    if "--json" in sys.argv[1:]:
        print(json.dumps(figures, indent=2))
    else:
        for name, value in figures.items():
            print(f"{name:34} {value}")
    return 0 if wall_s < LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
