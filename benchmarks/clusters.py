# SPDX-License-Identifier: Apache-2.0
"""Eight emulated clusters: is the planner's choice the fastest, and does it take as long as it says?

    python benchmarks/clusters.py                          # all of them: about 20 minutes on 2 cores
    python benchmarks/clusters.py --only two_sites star --seconds 60

Real processes of LeNet-5 on MNIST shapes, paced to the speeds of the nodes (scaled to fit the cores),
each in a network namespace of its own with the links of the cluster (`cluster_table.py`). Needs root.

First all nodes compute at once, without an exchange: a + b·n of each, and how much longer a step takes
because some node is slower than usual in it. With these and the links of the cluster file the planner
makes its plan. Then the plan, a flat ring of all nodes in the order of the
file, a flat parameter server of all nodes, and plain DDP over gloo take turns. Ring and server have the
shares that fit the speeds, as the plan has; DDP has equal ones. A prediction is the cost model's, made
before anything is exchanged.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from cluster_jobs import ClusterJob, ClusterTeam, Emulation, Entry
from cluster_table import CLUSTERS
from gangline import zoo
from gangline.planning.allocation.balanced import balanced, slowest_s
from gangline.planning.cost.model import predict_step
from gangline.planning.cost.network import resolve
from gangline.planning.cost.treecost import exchange_s
from gangline.planning.known import known_profile
from gangline.planning.planner import PlanOptions, make_plan
from gangline.profiling.clusterprobe import measure_local_link
from gangline.profiling.computing import reduce_s_per_byte
from gangline.spec.exchange.structure import Structure
from gangline.spec.plan import Plan
from gangline.spec.profile import ClusterProfile, Link
from gangline.spec.workload import Workload
from harness import Comparison, compare
from paced_teams import fit_line, solo_sizes, table, write_results

if TYPE_CHECKING:
    from collections.abc import Sequence

MODEL = "lenet5"
PLAN, RING, SERVER, DDP = "plan", "flat ring", "flat server", "DDP"
CONTENDERS = (PLAN, RING, SERVER, DDP)
WARM_UP_STEPS = 3
MEASURED_S, LEAST_STEPS, GREATEST_STEPS = 1.5, 2, 16
LEAST_BLOCKS, GREATEST_BLOCKS = 3, 12
NOISE_DRAWS = 4000
TOLERANCE = 1.05
"""A contender that is faster than the plan by more than this, outside the interval, beats it."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan is made from."""

    profile: ClusterProfile
    workload: Workload
    """With what a step waits for the noisiest node as its `other_s`."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one cluster."""

    name: str
    speeds: list[float]
    profile: ClusterProfile
    plan: Plan
    predicted_s: dict[str, float]
    comparison: Comparison

    def measured_s(self, contender: str) -> float:
        """The median step time."""
        return self.comparison.row(contender).median_s

    def error(self, contender: str) -> float:
        """How far the prediction is from what was measured, relative to that."""
        return self.predicted_s[contender] / self.measured_s(contender) - 1

    @property
    def beaten_by(self) -> list[str]:
        """Who is faster than the plan beyond the tolerance and the interval."""
        rows = [self.comparison.row(name) for name in CONTENDERS if name != PLAN]
        return [row.name for row in rows if row.speedup.low > TOLERANCE]

    def line(self) -> str:
        """The same in short."""
        times = [
            f"{name} {self.measured_s(name) * 1e3:.0f} ms"
            + (f" ({self.error(name):+.0%})" if name in self.predicted_s else "")
            for name in CONTENDERS
        ]
        return f"{self.name} ({self.plan.chosen}): {', '.join(times)}"


class Contestant:
    """A running job, measured a few steps at a time."""

    def __init__(self, job: ClusterJob) -> None:
        self._job = job
        job.take(WARM_UP_STEPS)
        step_s = job.take(LEAST_STEPS) / LEAST_STEPS
        self._steps = int(np.clip(MEASURED_S / step_s, LEAST_STEPS, GREATEST_STEPS))
        self.expected_s = self._steps * step_s

    def measure(self) -> float:
        """Seconds per step."""
        return self._job.take(self._steps) / self._steps


def run_cluster(
    name: str, teams: dict[str, ClusterTeam], *, options: argparse.Namespace, base: Link
) -> Outcome:
    """Measures one cluster, within about so many seconds."""
    deadline = time.monotonic() + options.seconds
    with contextlib.ExitStack() as stack:
        emulation = stack.enter_context(Emulation(CLUSTERS[name]))
        for team in teams.values():
            team.enter(emulation)
        measured = measure(
            teams[PLAN], emulation, batch=options.batch, seconds=options.seconds / 8, base=base
        )
        plan = make_plan(measured.profile, measured.workload, rng=np.random.default_rng(0))
        entries = make_entries(measured, plan)
        predicted = {
            contender: predict(measured, entry)
            for contender, entry in entries.items()
            if contender not in (PLAN, DDP)
        }
        predicted[PLAN] = plan.prediction.step_s
        racers = {
            contender: Contestant(stack.enter_context(teams[contender].job(entry, emulation)))
            for contender, entry in entries.items()
        }
        comparison = race(racers, seconds=deadline - time.monotonic(), seed=options.seed)
    return Outcome(
        name=name,
        speeds=emulation.speeds,
        profile=measured.profile,
        plan=plan,
        predicted_s=predicted,
        comparison=comparison,
    )


def measure(
    team: ClusterTeam, emulation: Emulation, *, batch: int, seconds: float, base: Link
) -> Measured:
    """The cluster file's links, with what this machine adds to them, and measured computing."""
    sizes = solo_sizes(emulation.speeds, batch)
    times = team.measure_alone(MODEL, samples=sizes, seconds=seconds)
    lines = [fit_line(one) for one in times]
    known = known_profile(emulation.cluster, local=base)
    gamma = reduce_s_per_byte()
    nodes = tuple(
        msgspec.structs.replace(
            node, fixed_s=line[0], per_sample_s=line[1], reduce_s_per_byte=gamma
        )
        for node, line in zip(known.nodes, lines, strict=True)
    )
    profile = ClusterProfile(nodes=nodes, pairs=known.pairs, model=MODEL)
    model = zoo.build_model(MODEL, image_size=28)
    workload = Workload(
        global_batch=batch,
        gradient_bytes=sum(4 * parameter.numel() for parameter in model.parameters()),
    )
    fixed_s, per_sample_s = [line[0] for line in lines], [line[1] for line in lines]
    optimum_s = slowest_s(balanced(batch, fixed_s, per_sample_s), fixed_s, per_sample_s)
    waiting_s = optimum_s * wait_for_noisiest(times)
    return Measured(profile=profile, workload=msgspec.structs.replace(workload, other_s=waiting_s))


def wait_for_noisiest(times: Sequence[dict[int, list[float]]]) -> float:
    """By what part a step is longer than usual because some node is slower than usual in it."""
    rng = np.random.default_rng(0)
    ratios = [
        np.concatenate([np.asarray(values) / np.median(values) for values in one.values()])
        for one in times
    ]
    drawn = np.stack([rng.choice(one, size=NOISE_DRAWS) for one in ratios])
    return max(0.0, float(np.median(drawn.max(axis=0))) - 1)


def make_entries(measured: Measured, plan: Plan) -> dict[str, Entry]:
    """What each contender runs."""
    profile, workload = measured.profile, measured.workload
    names = [node.name for node in profile.nodes]
    rng = np.random.default_rng(0)
    server = make_plan(
        profile,
        workload,
        rng=rng,
        options=PlanOptions(structure="flat-server", everybody=True),
    )
    share_of = dict(zip(server.nodes, server.shares, strict=True))
    everybody = Entry(
        kind="gangline",
        model=MODEL,
        global_batch=workload.global_batch,
        nodes=tuple(range(len(names))),
        shares=tuple(share_of[name] for name in names),
    )
    numbers = {name: [number] for number, name in enumerate(names)}
    star = Structure.from_plan(server.root, numbers)
    places = {name: [place] for place, name in enumerate(plan.nodes)}
    chosen = Entry(
        kind="gangline",
        model=MODEL,
        global_batch=workload.global_batch,
        nodes=tuple(names.index(name) for name in plan.nodes),
        shares=plan.shares,
        structure=Structure.from_plan(plan.root, places) if len(plan.nodes) > 1 else None,
    )
    return {
        PLAN: chosen,
        RING: everybody,
        SERVER: msgspec.structs.replace(everybody, structure=star),
        DDP: msgspec.structs.replace(everybody, kind="ddp"),
    }


def predict(measured: Measured, entry: Entry) -> float:
    """What the cost model says to a given structure and given shares."""
    workload = measured.workload
    network = resolve(measured.profile, workload)
    nodes = list(entry.nodes)
    structure = entry.structure or Structure.flat(nodes)
    prediction = predict_step(
        slowest_s(entry.shares, network.fixed_s[nodes], network.per_sample_s[nodes]),
        exchange_s(network, workload, structure),
        overlap=workload.overlap,
        num_units=workload.num_units,
        other_s=workload.other_s,
    )
    return prediction.step_s


def race(racers: dict[str, Contestant], *, seconds: float, seed: int) -> Comparison:
    """As many blocks as fit into the time; a block has two runs of each, and of the plan four."""
    run_s = sum(racer.expected_s for racer in racers.values()) + racers[PLAN].expected_s
    blocks = int(np.clip((seconds - run_s) / (2 * run_s), LEAST_BLOCKS, GREATEST_BLOCKS))
    return compare(
        {name: racer.measure for name, racer in racers.items()},
        baseline=PLAN,
        repeats=blocks,
        seed=seed,
    )


def describe(outcomes: Sequence[Outcome]) -> str:
    """All clusters as Markdown."""
    steps = table(
        ["cluster", "nodes", "chosen", *(f"{name} (ms)" for name in CONTENDERS), "beaten by"],
        [
            [
                one.name,
                len(one.speeds),
                one.plan.chosen,
                *(f"{one.measured_s(name) * 1e3:.0f}" for name in CONTENDERS),
                ", ".join(one.beaten_by) or "nobody",
            ]
            for one in outcomes
        ],
    )
    others = [name for name in CONTENDERS if name != PLAN]
    ratios = table(
        ["cluster", *(f"time of {name} / plan [95 %]" for name in others)],
        [[one.name, *(_inverse(one, name) for name in others)] for one in outcomes],
    )
    predicted = [name for name in CONTENDERS if name != DDP]
    errors = {name: [one.error(name) for one in outcomes] for name in predicted}
    everything = [error for values in errors.values() for error in values]
    accuracy = table(
        ["cluster", *(f"{name}: predicted / measured (ms)" for name in predicted)],
        [
            [
                one.name,
                *(
                    f"{one.predicted_s[name] * 1e3:.0f} / {one.measured_s(name) * 1e3:.0f} "
                    f"({one.error(name):+.0%})"
                    for name in predicted
                ),
            ]
            for one in outcomes
        ],
    )
    summary = table(
        ["contender", "median error", "worst error"],
        [
            [name, f"{np.median(np.abs(values)):.1%}", f"{max(values, key=abs):+.1%}"]
            for name, values in [*errors.items(), ("all", everything)]
        ],
    )
    machine = ", ".join(f"{k} {v}" for k, v in outcomes[0].comparison.machine.items())
    return "\n\n".join(
        [
            "# Eight emulated clusters",
            "## Step times",
            steps,
            ratios,
            "## Predictions",
            accuracy,
            summary,
            f"Machine: {machine}.",
        ]
    )


def _inverse(outcome: Outcome, name: str) -> str:
    speedup = outcome.comparison.row(name).speedup
    return f"{1 / speedup.median:.2f} [{1 / speedup.high:.2f}, {1 / speedup.low:.2f}]"


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(CLUSTERS), default=list(CLUSTERS))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=140.0, help="for each cluster")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="clusters", help="of the files in benchmarks/results")
    return parser.parse_args()


def main() -> None:
    """Measures the clusters, and writes and prints the results."""
    options = parse_options()
    if os.geteuid() != 0:
        raise SystemExit("the links are emulated by network namespaces: run this as root")
    base = measure_local_link(shared_memory=False)
    count = max(len(CLUSTERS[name].nodes) for name in options.only)
    outcomes = []
    with contextlib.ExitStack() as stack:
        teams = {name: stack.enter_context(ClusterTeam(count)) for name in CONTENDERS}
        for name in options.only:
            outcomes.append(run_cluster(name, teams, options=options, base=base))
            print(outcomes[-1].line(), flush=True)
    write_results(options.name, describe(outcomes) + "\n", outcomes)


if __name__ == "__main__":
    main()
