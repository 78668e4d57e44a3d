# SPDX-License-Identifier: Apache-2.0
"""Is a version of gangline slower than an older one?

    git worktree add /tmp/old COMMIT
    python benchmarks/commits.py /tmp/old              # 10 blocks of each: about 30 minutes on 2 cores
    python benchmarks/commits.py /tmp/old --only lenet5 killed --repeats 4

Jobs of four workers, each started anew by `gangline run` of the version in question, take turns:
LeNet-5 and a model of 12.8 million parameters on equal workers, LeNet-5 on unlike ones, and with a
worker that is killed in the measured half. The simulator runs 10,000 workers for 1,000 steps.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness import compare, save

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
WORKER = HERE / "commits_worker.py"
KILL = '[[faults]]\nworker = 3\nkind = "kill"\nstep = {step}\n'
JOBS: dict[str, tuple[list[str], list[str]]] = {
    "lenet5": (["--nodes", "4"], ["lenet5", "300", "256"]),
    "wide": (["--nodes", "4"], ["wide", "60", "256"]),
    "uneven": (["--speeds", "1,0.5,0.2,0.1"], ["lenet5", "300", "256"]),
    "killed": (["--nodes", "4"], ["lenet5", "300", "256"]),
}
"""Flags of `gangline run`, and of what it runs."""


def run_job(name: str, tree: Path) -> float:
    """How long the second half of the steps took, in a job of this version."""
    flags, arguments = JOBS[name]
    with tempfile.TemporaryDirectory() as folder:
        if name == "killed":
            plan = Path(folder, "faults.toml")
            plan.write_text(KILL.format(step=int(arguments[1]) * 3 // 4))
            flags = [*flags, "--faults", str(plan)]
        output = _run(
            tree,
            [*["-m", "gangline.cli.main", "run", "--run-dir"], f"{folder}/run", *flags],
            [str(WORKER), *arguments],
        )
    found = re.search(r"half of the steps took ([\d.]+) s", output)
    if found is None:
        sys.exit(f"a job of {tree} has not told how long it took:\n{output}")
    return float(found[1])


def run_simulator(tree: Path) -> float:
    """How long the largest simulation takes."""
    command = [str(tree / "benchmarks" / "simulator_scale.py"), "--json"]
    return float(json.loads(_run(tree, command, [], may_fail=True))["wall_s"])


def _run(tree: Path, command: list[str], arguments: list[str], *, may_fail: bool = False) -> str:
    """What a version prints; with `may_fail` also where it says by its exit code that it is slow."""
    environment = {**os.environ, "PYTHONPATH": _path_of(tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode and not may_fail:
        sys.exit(f"{tree}: {' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def _told(name: str, which: str, measure: Callable[[], float]) -> float:
    seconds = measure()
    print(f"{name}, {which}: {seconds:.2f} s", file=sys.stderr, flush=True)
    return seconds


def _path_of(tree: Path) -> str:
    others = [one for one in os.environ.get("PYTHONPATH", "").split(":") if one]
    return ":".join([str(tree / "src"), *(one for one in others if not one.endswith("/src"))])


def main() -> None:
    """Compares and prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("old", type=Path, help="a checkout of the older version")
    parser.add_argument("--only", nargs="+", choices=[*JOBS, "simulator"])
    parser.add_argument("--repeats", type=int, default=10, help="blocks of two runs each")
    options = parser.parse_args()
    trees = {"old": options.old.resolve(), "new": HERE.parent.resolve()}
    comparisons = {}
    for name in options.only or [*JOBS, "simulator"]:
        measure = run_simulator if name == "simulator" else partial(run_job, name)
        contenders = {
            which: partial(_told, name, which, partial(measure, tree))
            for which, tree in trees.items()
        }
        comparisons[name] = compare(contenders, baseline="old", repeats=options.repeats)
        print(f"## {name}\n\n{comparisons[name].to_markdown()}\n", flush=True)
    save("commits", comparisons)


if __name__ == "__main__":
    main()
