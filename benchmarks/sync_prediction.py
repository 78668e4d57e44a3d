# SPDX-License-Identifier: Apache-2.0
"""Whether the simulator knows beforehand what `sync_modes.py` measures: the time of an epoch, per mode.

    python benchmarks/sync_prediction.py                                # predicts
    python benchmarks/sync_prediction.py results/sync_modes.json        # and compares

What a step costs is measured here first, on one core that nothing else uses; or given, in milliseconds,
with --fixed-ms and --per-sample-ms. Everything else is in the scenarios.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from gangline import zoo
from gangline.control import ControlOptions
from gangline.emulation.scaling import scale_speeds
from gangline.simulation import Course, Scenario, simulate, simulate_teams
from gangline.simulation.links import SimulatedLink, Spell
from gangline.simulation.scenario import SimulatedNode, Throttle
from gangline.spec.sync import parse_sync
from paced_teams import table, write_results
from sync_modes import EPOCHS, GLOBAL_BATCH, PERCENTAGES, SAMPLES, SCENARIOS
from sync_worker import MOOD_BATCHES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sync_modes import Scenario as Measured

MODES = ("full", "none", *(f"percentage({rate:g})" for rate in PERCENTAGES), "flexible")
RATE_S = 0.25
"""How often a shaky link changes."""
FOREVER_S = 1e9
SHAKY_S = 120.0
"""Longer than an unsteady run takes; then its links are steady."""
MOODS = 100
SLOWED = 5.0
NOISE = 0.05
SOLO_SAMPLES = (4, 64)


class Costs(NamedTuple):
    """What is the same in all scenarios."""

    fixed_s: float
    per_sample_s: float
    exchange_s: float
    """Of an exchange however small, links left out."""
    merge_s: float
    model_bytes: float


def measure_costs(*, exchange_s: float, merge_s: float, seconds: float = 1.0) -> Costs:
    """What a step of the model takes on one core, by two sizes of batches."""
    torch.set_num_threads(1)
    model = zoo.build_model("lenet5", image_size=28)
    times = []
    for count in SOLO_SAMPLES:
        images, labels = torch.rand(count, 1, 28, 28), torch.zeros(count, dtype=torch.int64)
        taken: list[float] = []
        while len(taken) < 5 or sum(taken) < seconds:
            begin_s = time.perf_counter()
            F.cross_entropy(model(images), labels).backward()
            taken.append(time.perf_counter() - begin_s)
        times.append(median(taken))
    per_sample_s = (times[1] - times[0]) / (SOLO_SAMPLES[1] - SOLO_SAMPLES[0])
    num_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    fixed_s = max(times[0] - SOLO_SAMPLES[0] * per_sample_s, 1e-5)
    return Costs(fixed_s, per_sample_s, exchange_s, merge_s, float(num_bytes))


def simulated(measured: Measured, costs: Costs, *, cores: int, seed: int) -> Scenario:
    """A measured scenario as the simulator understands it; what is random in it is drawn."""
    rng = random.Random(seed)
    cluster = measured.cluster
    scaled = scale_speeds([0.999 * node.speed for node in cluster.nodes], cores).speeds
    is_grouped = len({node.place for node in cluster.nodes}) > 1
    nodes = tuple(
        SimulatedNode(
            name=node.name,
            place=node.place,
            group=f"at {node.place}" if is_grouped else "",
            speed=speed,
            bytes_per_s=node.bytes_per_s,
            delay_s=node.delay_s,
            throttles=_moods(measured, rng),
            spells=_slowed(measured, worker),
        )
        for worker, (node, speed) in enumerate(zip(cluster.nodes, scaled, strict=True))
    )
    rates = _rates(measured, rng)
    links = tuple(
        SimulatedLink(
            between=link.between,
            bytes_per_s=link.bytes_per_s,
            delay_s=link.delay_s,
            spells=rates if link.bytes_per_s is not None else (),
        )
        for link in cluster.links
    )
    return Scenario(
        nodes=nodes,
        links=links,
        fixed_s=costs.fixed_s,
        per_sample_s=costs.per_sample_s,
        noise=NOISE,
        exchange_s=costs.exchange_s,
        merge_s=costs.merge_s,
        model_bytes=costs.model_bytes,
        whole_bytes=2 * costs.model_bytes,  # the momentum too
    )


def _moods(measured: Measured, rng: random.Random) -> tuple[Throttle, ...]:
    if measured.least_speed == 1:
        return ()
    return tuple(
        Throttle(
            from_step=number * MOOD_BATCHES,
            to_step=(number + 1) * MOOD_BATCHES,
            factor=1 / rng.uniform(measured.least_speed, 1.0),
        )
        for number in range(MOODS)
    )


def _slowed(measured: Measured, worker: int) -> tuple[Spell, ...]:
    is_slowed = worker in measured.slowed
    return (Spell(from_s=measured.change_s, to_s=FOREVER_S, factor=SLOWED),) if is_slowed else ()


def _rates(measured: Measured, rng: random.Random) -> tuple[Spell, ...]:
    spells = []
    if measured.least_rate < 1:
        spells += [
            Spell(
                from_s=number * RATE_S,
                to_s=(number + 1) * RATE_S,
                factor=1 / rng.uniform(measured.least_rate, 1.0),
            )
            for number in range(int(SHAKY_S / RATE_S))
        ]
    if measured.late_rate < 1:
        late = Spell(from_s=measured.change_s, to_s=FOREVER_S, factor=1 / measured.late_rate)
        spells.append(late)
    return tuple(spells)


def predict(measured: Measured, mode: str, costs: Costs, *, cores: int, seeds: int) -> float:
    """The time of an epoch."""
    times = []
    for seed in range(seeds):
        scenario = simulated(measured, costs, cores=cores, seed=seed)
        options = ControlOptions(global_batch=GLOBAL_BATCH, seed=seed)
        course = Course(samples=SAMPLES)
        sync = parse_sync(mode)
        if sync.is_relaxed:
            found = simulate_teams(scenario, sync, options=options, course=course, epochs=EPOCHS)
            wall_s = found.wall_s
        else:
            steps = EPOCHS * -(-SAMPLES // GLOBAL_BATCH)
            wall_s = simulate(
                scenario, options=options, steps=steps, seed=seed, course=course
            ).wall_s
        times.append(wall_s / EPOCHS)
    return median(times)


def rank_correlation(first: list[float], second: list[float]) -> float:
    """Spearman's: 1 where both are in the same order, -1 where in the opposite one."""
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1]) if len(first) > 1 else float("nan")


def compare(
    predicted: Mapping[str, Mapping[str, float]],
    measured: Mapping[str, Mapping[str, Mapping[str, Any]]],
) -> str:
    """Predicted beside measured, scenario by scenario, for the modes that both know."""
    text, correlations, hits = "", [], 0
    for name in [one for one in predicted if one in measured]:
        modes = [mode for mode in predicted[name] if mode in measured[name]]
        guess = [predicted[name][mode] for mode in modes]
        truth = [measured[name][mode]["epoch_s"] for mode in modes]
        # A target that was never reached is infinitely far, which JSON writes as null.
        target = [measured[name][mode]["to_target_s"] or math.inf for mode in modes]
        rows = [
            [mode, f"{a:.2f}", f"{b:.2f}", f"{a / b:.2f}", f"{c:.2f}"]
            for mode, a, b, c in zip(modes, guess, truth, target, strict=True)
        ]
        best, found = modes[int(np.argmin(truth))], modes[int(np.argmin(guess))]
        correlation = rank_correlation(guess, truth)
        correlations.append(correlation)
        hits += best == found
        by_target = rank_correlation(guess, target)
        verdict = "the fastest is ranked first" if best == found else f"{found} is ranked first"
        head = ["mode", "predicted (s)", "measured (s)", "ratio", "to the target (s)"]
        text += (
            f"## {name}\n\n{table(head, rows)}\n\nrank correlation {correlation:.2f} (with the time "
            f"to the target {by_target:.2f}); the fastest is {best}: {verdict}\n\n"
        )
    if correlations:
        text += (
            f"Over {len(correlations)} scenarios: mean rank correlation {mean(correlations):.2f}; the "
            f"fastest mode is ranked first in {hits}.\n"
        )
    return text


def main() -> None:
    """Prints the predictions, and how they compare where something was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measured", nargs="?", type=Path, help="what sync_modes.py has written")
    parser.add_argument("--only", nargs="*", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fixed-ms", type=float)
    parser.add_argument("--per-sample-ms", type=float)
    parser.add_argument("--exchange-ms", type=float, default=2.0)
    parser.add_argument("--merge-ms", type=float, default=2.0)
    given = parser.parse_args()
    costs = measure_costs(exchange_s=given.exchange_ms / 1000, merge_s=given.merge_ms / 1000)
    if given.fixed_ms is not None:
        costs = costs._replace(fixed_s=given.fixed_ms / 1000)
    if given.per_sample_ms is not None:
        costs = costs._replace(per_sample_s=given.per_sample_ms / 1000)
    predicted = {
        name: {
            mode: predict(SCENARIOS[name], mode, costs, cores=given.cores, seeds=given.seeds)
            for mode in MODES
        }
        for name in given.only
    }
    rows = [[name, *(f"{one[mode]:.2f}" for mode in MODES)] for name, one in predicted.items()]
    text = "# Predicted seconds per epoch\n\n"
    text += (
        f"A step of n samples at speed 1: {costs.fixed_s * 1000:.2f} + {costs.per_sample_s * 1000:.3f}"
        f"·n ms, {given.cores} cores.\n\n{table(['scenario', *MODES], rows)}\n\n"
    )
    if given.measured is not None:
        text += compare(predicted, json.loads(given.measured.read_text()))
    write_results("sync_prediction", text, {"costs": costs._asdict(), "predicted": predicted})


if __name__ == "__main__":
    main()
