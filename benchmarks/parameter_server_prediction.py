# SPDX-License-Identifier: Apache-2.0
"""What the simulator says of `parameter_server.py` beforehand: the time of all epochs, per contender.

    python benchmarks/parameter_server_prediction.py --cores 4 --use 0.6

What a step costs is measured first, on one core that nothing else uses, and kept with the prediction
in results/parameter_server_prediction.json; `parameter_server_tables.py` compares. DDP is not
predicted: the simulator knows gangline alone.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from gangline.control import ControlOptions
from gangline.emulation.scaling import USABLE_FRACTION
from gangline.simulation import Course, Scenario, simulate, simulate_teams
from gangline.simulation.scenario import SimulatedNode
from gangline.spec.sync import parse_sync
from harness import RESULTS
from parameter_server_cells import AIMS, CONTENDERS, SCENARIOS
from parameter_server_train import (
    DDP,
    PAUSE_EVERY_S,
    PAUSE_S,
    data_of,
    loss_of,
    model_of,
)

GLOBAL_BATCH = 64
SOLO_SAMPLES = (8, 32)
NAME = "parameter_server_prediction"
Predicted = dict[str, dict[str, dict[str, float]]]
"""Seconds, by model, scenario and contender."""


class Costs(NamedTuple):
    """Of one model, on one core at full speed."""

    fixed_s: float
    per_sample_s: float
    model_bytes: float


def measure_costs(name: str, data: Path, *, seconds: float = 1.5) -> Costs:
    """By two sizes of batches: what a step takes."""
    torch.set_num_threads(1)
    model, samples = model_of(name), data_of(name, data, count=SOLO_SAMPLES[1])
    times = []
    for count in SOLO_SAMPLES:
        inputs, targets = samples.__getitems__(range(count))  # type: ignore[attr-defined]
        taken: list[float] = []
        while len(taken) < 5 or sum(taken) < seconds:
            begin_s = time.perf_counter()
            loss_of(model(inputs), targets).backward()
            taken.append(time.perf_counter() - begin_s)
        times.append(median(taken))
    per_sample_s = (times[1] - times[0]) / (SOLO_SAMPLES[1] - SOLO_SAMPLES[0])
    num_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    return Costs(max(times[0] - SOLO_SAMPLES[0] * per_sample_s, 1e-5), per_sample_s, num_bytes)


def scenario_of(name: str, costs: Costs, given: argparse.Namespace) -> Scenario:
    """A measured scenario as the simulator understands it."""
    asked = SCENARIOS[name]
    scale = min(1.0, given.use * given.cores / sum(asked.speeds))
    share = GLOBAL_BATCH / len(asked.speeds)
    usual_s = (costs.fixed_s + share * costs.per_sample_s) / scale + given.exchange_ms / 1000
    nodes = tuple(
        SimulatedNode(
            name=f"n{number}",
            speed=scale * speed,
            bytes_per_s=asked.bytes_per_s,
            pause_probability=min(1.0, usual_s / PAUSE_EVERY_S) if asked.has_pauses else 0.0,
            pause_s=PAUSE_S if asked.has_pauses else 0.0,
        )
        for number, speed in enumerate(asked.speeds)
    )
    return Scenario(
        nodes=nodes,
        fixed_s=costs.fixed_s,
        per_sample_s=costs.per_sample_s,
        exchange_s=given.exchange_ms / 1000,
        model_bytes=costs.model_bytes,
        whole_bytes=3 * costs.model_bytes,
    )


class Asked(NamedTuple):
    """One simulation."""

    model: str
    scenario: str
    contender: str
    seed: int


def predict(asked: Asked, scenario: Scenario) -> float:
    """Seconds of all epochs."""
    aim, sync = AIMS[asked.model], parse_sync(asked.contender)
    course = Course(samples=aim.samples)
    options = ControlOptions(global_batch=GLOBAL_BATCH, seed=asked.seed)
    if sync.is_relaxed:
        return simulate_teams(
            scenario, sync, options=options, course=course, epochs=aim.epochs
        ).wall_s
    steps = aim.epochs * -(-aim.samples // GLOBAL_BATCH)
    return simulate(scenario, options=options, steps=steps, seed=asked.seed, course=course).wall_s


def predict_all(given: argparse.Namespace) -> dict[str, object]:
    """The costs, and what comes of them: the median of so many seeds. Uses all cores."""
    costs = {model: measure_costs(model, given.data) for model in given.models}
    modes = [contender for contender in CONTENDERS if contender != DDP]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        asked = [
            Asked(*one) for one in product(given.models, given.scenarios, modes, range(given.seeds))
        ]
        scenarios = [scenario_of(one.scenario, costs[one.model], given) for one in asked]
        found = dict(zip(asked, pool.map(predict, asked, scenarios), strict=True))
    predicted: Predicted = {
        model: {
            name: {
                mode: median(found[Asked(model, name, mode, seed)] for seed in range(given.seeds))
                for mode in modes
            }
            for name in given.scenarios
        }
        for model in given.models
    }
    return {"costs": {model: one._asdict() for model, one in costs.items()}, "predicted": predicted}


def main() -> None:
    """Predicts, and keeps it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--models", nargs="+", choices=list(AIMS), default=list(AIMS))
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="per run")
    parser.add_argument("--use", type=float, default=USABLE_FRACTION)
    parser.add_argument("--exchange-ms", type=float, default=2.0, help="of a sum among four")
    parser.add_argument("--seeds", type=int, default=3)
    default = os.environ.get("GANGLINE_DATA", "../shared/data")
    parser.add_argument("--data", type=Path, default=Path(default))
    given = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{NAME}.json"
    path.write_text(json.dumps(predict_all(given), indent=1))
    print(path.read_text())


if __name__ == "__main__":
    main()
