# SPDX-License-Identifier: Apache-2.0
"""One GPU and some CPU workers: do the CPUs help, and does the planner know? And a divided GPU.

    python benchmarks/gpu_mix.py                       # needs a CUDA device; with MPS all of it
    python benchmarks/gpu_mix.py --width 8 --batch 64  # also runs without one, and shows nothing then

Each worker measures alone what its samples cost. From that the planner says who should take part, and
what a step would take with the GPU alone and with everybody. Both jobs take turns, and their steps are
measured. MPS divides the GPU: once for a GPU so weak that the CPUs do help, and once for two workers on
parts of unlike size, with equal and with balanced shares.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from cluster_jobs import Entry
from clusters import Measured, predict
from gangline.planning.known import known_profile
from gangline.planning.planner import PlanOptions, make_plan
from gangline.profiling.clusterprobe import measure_local_link
from gangline.spec.cluster import Cluster, Node
from gangline.spec.profile import ClusterProfile
from gangline.spec.workload import Workload
from gpu_mix_train import NODE, build
from paced_teams import table, write_results

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).with_name("gpu_mix_train.py")
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
WEAK = 1
"""Per cent of the GPU for one that CPUs can help."""
UNLIKE = (40, 10)


def gpu(name: str, percentage: int = 100) -> Node:
    """A node with the GPU, or a part of it."""
    own = {} if percentage == 100 else {PERCENTAGE: str(percentage)}
    return Node(name=name, environment={NODE: name, **own})


def cpus(count: int, threads: int) -> tuple[Node, ...]:
    """Nodes without GPU."""
    hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": str(threads)}
    return tuple(
        Node(name=f"cpu{i}", environment={NODE: f"cpu{i}", **hidden}) for i in range(count)
    )


@contextlib.contextmanager
def divided_gpu() -> Iterator[bool]:
    """The daemon that divides the GPU; whether there is one."""
    control = shutil.which("nvidia-cuda-mps-control")
    with tempfile.TemporaryDirectory() as folder:
        if control is None:
            yield False
            return
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.environ["CUDA_MPS_LOG_DIRECTORY"] = folder
        started = subprocess.run([control, "-d"], check=False, timeout=30)
        try:
            yield started.returncode == 0
        finally:
            subprocess.run([control], input="quit -t 5\n", text=True, check=False, timeout=30)
            del os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]


class Run(msgspec.Struct, frozen=True):
    """What one job showed."""

    step_s: float
    shares: list[int]
    alone: dict[str, dict[int, float]]
    devices: dict[str, str]


def run(
    nodes: tuple[Node, ...], options: argparse.Namespace, *, allocation: str = "balanced"
) -> Run:
    """One job of these nodes, by the command that a user would give."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = "".join(
            f"[[nodes]]\nname = {json.dumps(node.name)}\n[nodes.environment]\n"
            + "".join(f"{key} = {json.dumps(value)}\n" for key, value in node.environment.items())
            for node in nodes
        )
        (folder / "cluster.toml").write_text(text)
        flags = ["--cluster", str(folder / "cluster.toml"), "--allocation", allocation]
        flags += ["--run-dir", str(folder / "run"), "--json"]
        own = ["--folder", name, "--batch", str(options.batch), "--steps", str(options.steps)]
        own += ["--width", str(options.width)]
        command = [sys.executable, "-m", "gangline.cli.main", "run", *flags, str(SCRIPT), *own]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if ended.returncode:
            raise SystemExit(ended.stdout[-3000:] + ended.stderr[-3000:])
        report = [
            sys.executable,
            "-m",
            "gangline.cli.main",
            "report",
            str(folder / "run"),
            "--json",
        ]
        told = json.loads(subprocess.run(report, capture_output=True, text=True, check=True).stdout)
        found = {
            node.name: json.loads((folder / f"{node.name}.json").read_text()) for node in nodes
        }
    newest = told["views"][-1]
    return Run(
        told["step_median_s"],
        newest["shares"],
        {node: {int(n): s for n, s in one["alone"].items()} for node, one in found.items()},
        {node: one["device"] for node, one in found.items()},
    )


def advise(nodes: tuple[Node, ...], alone: dict[str, dict[int, float]], options: Any) -> Measured:
    """What the planner is told: each worker alone, and this machine's own links."""
    known = known_profile(Cluster(nodes=nodes), local=measure_local_link(shared_memory=True))
    measured = []
    for node in known.nodes:
        times = alone[node.name]
        seconds = np.array(list(times.values()))
        per_sample_s, fixed_s = np.polyfit(list(times), seconds, 1, w=1 / seconds)
        if fixed_s < 0 or per_sample_s <= 0:
            fixed_s, per_sample_s = 0.0, median(s / n for n, s in times.items())
        measured.append(
            msgspec.structs.replace(node, fixed_s=float(fixed_s), per_sample_s=float(per_sample_s))
        )
    size = sum(4 * parameter.numel() for parameter in build(options.width).parameters())
    return Measured(
        profile=ClusterProfile(nodes=tuple(measured), pairs=known.pairs, model="conv"),
        workload=Workload(global_batch=options.batch, gradient_bytes=size),
    )


def compare_mix(name: str, first: Node, options: argparse.Namespace) -> list[str]:
    """The GPU alone against the GPU with CPUs, and what the planner says to it."""
    nodes = (first, *cpus(options.cpus, options.threads))
    alone, mixed = [], []
    for _ in range(options.repeats):
        alone.append(run((first,), options))
        mixed.append(run(nodes, options))
    measured = advise(nodes, mixed[-1].alone, options)
    rng = np.random.default_rng(0)
    plan = make_plan(measured.profile, measured.workload, rng=rng)
    everybody = make_plan(
        measured.profile, measured.workload, rng=rng, options=PlanOptions(everybody=True)
    )
    single = Entry(
        kind="gangline",
        model="",
        global_batch=options.batch,
        nodes=(0,),
        shares=(options.batch,),
    )
    alone_s = median(one.step_s for one in alone)
    mixed_s = median(one.step_s for one in mixed)
    advice = "GPU alone" if plan.nodes == (first.name,) else f"with {len(plan.nodes) - 1} CPUs"
    is_right = (advice == "GPU alone") == (alone_s <= mixed_s)
    return [
        name,
        f"{alone_s * 1e3:.2f} ({predict(measured, single) * 1e3:.2f})",
        f"{mixed_s * 1e3:.2f} ({everybody.prediction.step_s * 1e3:.2f})",
        "/".join(map(str, mixed[-1].shares)),
        advice,
        "yes" if is_right else "no",
    ]


def compare_unlike(options: argparse.Namespace) -> list[str]:
    """Two parts of one GPU, with equal and with balanced shares."""
    nodes = tuple(gpu(f"gpu{percentage}", percentage) for percentage in UNLIKE)
    equal, balanced = [], []
    for _ in range(options.repeats):
        equal.append(run(nodes, options, allocation="equal"))
        balanced.append(run(nodes, options))
    equal_s, balanced_s = (median(one.step_s for one in runs) for runs in (equal, balanced))
    return [
        " and ".join(f"{percentage} %" for percentage in UNLIKE),
        f"{equal_s * 1e3:.2f}",
        f"{balanced_s * 1e3:.2f}",
        "/".join(map(str, balanced[-1].shares)),
        f"{equal_s / balanced_s:.2f}",
    ]


def main() -> None:
    """Measures, and prints and keeps two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    rows = [compare_mix("whole GPU", gpu("gpu"), options)]
    head = ["GPU", "alone (ms)", "with CPUs (ms)", "shares", "the planner says", "right"]
    title = "# GPU and CPU workers\n\nMeasured step, and in brackets predicted.\n\n"
    text = f"{title}{table(head, rows)}\n"
    print(text, flush=True)
    with divided_gpu() as is_divided:
        if is_divided:
            weak = compare_mix(f"{WEAK} % of it", gpu("gpu", WEAK), options)
            unlike = compare_unlike(options)
            rows.append(weak)
            parts = ["parts of the GPU", "equal (ms)", "balanced (ms)", "shares", "speed-up"]
            text = f"{title}{table(head, rows)}\n\n{table(parts, [unlike])}\n"
    write_results("gpu_mix", text, {"rows": rows})


if __name__ == "__main__":
    main()
