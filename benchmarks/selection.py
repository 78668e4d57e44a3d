# SPDX-License-Identifier: Apache-2.0
"""Are the workers that train together those with which a step is shortest, and how soon?

    python benchmarks/selection.py [--clusters 30] [--seeds 8]

Simulated, about three minutes. First, random clusters of four unlike nodes, each behind a link of its
own, train a model of 20 MB: every set of nodes is run for itself, and the job with all of them, which
leaves out whom it likes. Printed is how long a step of the best set takes, by that of the set which the
job came to. Then seven nodes of which one has a twentieth of the speed of the fastest, and last like
workers under noise, of whom nobody may be left out.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np

from gangline.control import ControlOptions
from gangline.simulation import Scenario, simulate
from gangline.simulation.scenario import SimulatedNode
from gangline.spec.event import AnyEvent, Decision, StepDone

BATCH = 128
STEPS, ALONE_STEPS, LAST = 150, 40, 20
SEVEN = (1.0, 1.0, 1.0, 0.7, 0.3, 0.3, 0.05)


def scenario(nodes: tuple[SimulatedNode, ...], *, noise: float = 0.05) -> Scenario:
    """A cluster whose workers exchange 20 MB."""
    return Scenario(nodes=nodes, noise=noise, model_bytes=20e6)


def random_nodes(rng: np.random.Generator) -> tuple[SimulatedNode, ...]:
    """Four nodes of unlike speeds behind links of 0.1 to 30 Gbit/s."""
    return tuple(
        SimulatedNode(
            name=f"n{place}",
            speed=float(0.05 * rng.choice([1.0, 0.7, 0.5, 0.3, 0.1])),
            bytes_per_s=float(12.5e6 * 10 ** rng.uniform(0, 2.5)),
        )
        for place in range(4)
    )


def median_step_s(nodes: tuple[SimulatedNode, ...], seed: int) -> float:
    """A step of these nodes, when their shares have settled."""
    options = ControlOptions(global_batch=BATCH, may_exclude=False, seed=seed)
    result = simulate(scenario(nodes), options=options, steps=ALONE_STEPS, seed=seed)
    return float(np.median([step.step_s for step in result.history[-LAST:]]))


def chosen(nodes: tuple[SimulatedNode, ...], seed: int) -> tuple[tuple[int, ...], int]:
    """Whom the job came to, and after which step it last left somebody out (-1: never)."""
    members: dict[int, set[int]] = {}
    excluded = [-1]

    def see(event: AnyEvent) -> None:
        if isinstance(event, StepDone):
            members.setdefault(event.step, set()).add(event.worker)
        elif isinstance(event, Decision) and event.what == "exclude":
            excluded.append(int(event.numbers["step"] or 0))

    options = ControlOptions(global_batch=BATCH, seed=seed)
    simulate(scenario(nodes), options=options, steps=STEPS, seed=seed, sink=see)
    return tuple(sorted(members[max(members)])), max(excluded)


def compare_sets(num_clusters: int) -> None:
    """Random clusters: the set that a job comes to, beside the best of all."""
    rng = np.random.default_rng(0)
    ratios, same, after, sizes = [], 0, [], []
    for seed in range(num_clusters):
        nodes = random_nodes(rng)
        sets = [c for size in range(1, 5) for c in itertools.combinations(range(4), size)]
        step_s = {one: median_step_s(tuple(nodes[i] for i in one), seed) for one in sets}
        best = min(sets, key=lambda one: step_s[one])
        found, step = chosen(nodes, seed)
        ratios.append(step_s[best] / step_s[found])
        best_alone_s = min(step_s[one,] for one in range(4))
        sizes.append(best_alone_s / step_s[found])
        same += found == best
        after += [step] if step >= 0 else []
    low, middle, high = np.percentile(ratios, [0, 50, 100])
    print(f"{num_clusters} random clusters of four: the best set of all was chosen in {same}")
    print(f"  the best set's step by the chosen set's: median {middle:.3f} [{low:.3f}, {high:.3f}]")
    print(f"  the chosen set's speed by the best machine's alone: {min(sizes):.2f} at least")
    print(f"  somebody was left out last after step {np.median(after):.0f}, {max(after)} at most")


def compare_seven(num_seeds: int) -> None:
    """Seven nodes, one of which is very slow: with and without leaving it out."""
    nodes = tuple(SimulatedNode(name=f"n{i}", speed=0.1 * one) for i, one in enumerate(SEVEN))
    ratios, steps = [], []
    for seed in range(num_seeds):
        excluded: list[int] = []

        def see(event: AnyEvent, excluded: list[int] = excluded) -> None:
            if isinstance(event, Decision) and event.what == "exclude":
                excluded.append(int(event.numbers["step"] or 0))

        wall_s = []
        for may_exclude in (False, True):
            options = ControlOptions(global_batch=256, may_exclude=may_exclude, seed=seed)
            cluster = Scenario(nodes=nodes, noise=0.13)
            result = simulate(cluster, options=options, steps=200, seed=seed, sink=see)
            wall_s.append(result.wall_s)
        ratios.append(wall_s[0] / wall_s[1])
        steps += excluded[:1]
    print(
        f"seven nodes, 200 steps, {num_seeds} seeds: {min(ratios):.2f} to {max(ratios):.2f} times"
    )
    print(f"  as fast as with everybody; the slowest is left out after step {max(steps)} at most")


def show_slow_networks(num_seeds: int) -> None:
    """Three unlike nodes behind slow links: how many steps are made before the best goes on alone."""
    for bits in (1e8, 1e9):
        nodes = tuple(
            SimulatedNode(name=f"n{place}", speed=speed, bytes_per_s=bits / 8)
            for place, speed in enumerate((0.6, 0.25, 0.1))
        )
        found = [chosen(nodes, seed) for seed in range(num_seeds)]
        alone = sum(members == (0,) for members, _ in found)
        print(
            f"three nodes behind {bits / 1e9:g} Gbit/s: the best alone in {alone} of {num_seeds}, "
            f"after step {max(step for _, step in found)} at most"
        )


def count_alike(num_seeds: int) -> None:
    """Like workers under noise: how many are left out."""
    excluded = []
    nodes = tuple(SimulatedNode(name=f"n{place}", speed=0.1) for place in range(4))
    for seed, exchange_s in itertools.product(range(num_seeds), (0.0, 0.02, 0.05)):

        def see(event: AnyEvent) -> None:
            if isinstance(event, Decision) and event.what == "exclude":
                excluded.append(event)

        cluster = Scenario(nodes=nodes, noise=0.13, exchange_s=exchange_s)
        options = ControlOptions(global_batch=256, seed=seed)
        simulate(cluster, options=options, steps=1000, seed=seed, sink=see)
    print(f"like workers, {3 * num_seeds} runs of 1,000 steps: {len(excluded)} were left out")


def main() -> None:
    """Prints all four."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clusters", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    compare_sets(options.clusters)
    compare_seven(options.seeds)
    show_slow_networks(options.seeds)
    count_alike(options.seeds)


if __name__ == "__main__":
    main()
