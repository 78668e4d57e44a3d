# SPDX-License-Identifier: Apache-2.0
"""Pipelines over unlike machines: an uneven cut against the equal one of torch.distributed.pipelining.

    python benchmarks/pipelines.py                       # paced CPUs (4 minutes on 2 cores)
    python benchmarks/pipelines.py --cuda 20,30,50       # parts of one GPU, by MPS
    python benchmarks/pipelines.py --short

A chain of like blocks is cut over workers of unlike speed, into the same number of micro-batches by the
same schedule. torch's stages have as many blocks each; gangline cuts by what it has measured. Both are
paced alike. Then every worker is given less memory than the model needs: it fits nowhere alone, and
trains all the same.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import pipelines_worker as worker
from gangline.testing import WorkerPool
from harness import RESULTS, compare

SPEEDS = (0.2, 0.1, 0.05)
"""So slow that two cores have time for all of them."""
TORCH, GANGLINE, COPIES = "torch, equal cut", "gangline", "gangline, with copies"


class Contest:
    """One set of workers, which all contenders use in turn."""

    def __init__(self, pool: WorkerPool, job: dict[str, Any]) -> None:
        self._pool, self._job = pool, job
        self.last: dict[str, list[dict[str, Any]]] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="pipelines-"))
        self._runs = 0

    def gangline(self, *, copies: bool, memory: list[float] | None = None) -> float:
        """Seconds per step of the slowest worker."""
        job = {**self._job, "copies": copies}
        return self._run(COPIES if copies else GANGLINE, worker.train_gangline, (job, memory))

    def torch(self) -> float:
        """Seconds per step of the slowest worker."""
        self._runs += 1
        store = str(self._folder / f"store-{self._runs}")
        return self._run(TORCH, worker.train_torch, (self._job, store))

    def _run(self, name: str, function: Any, arguments: tuple[Any, ...]) -> float:
        found = self._pool.run(
            function,
            self._job["workers"],
            args=arguments,
            speeds=self._job["speeds"],
            deadline_s=300,
        )
        self.last[name] = found
        return max(one["step_s"] for one in found)


def describe(contest: Contest) -> list[str]:
    """Who held what, in the last run of each."""
    lines = [
        "| contender | parameters held, MB | peak on the GPU, MB | stages |",
        "|---|---|---|---|",
    ]
    for name, found in contest.last.items():
        held = ", ".join(f"{one['held_mb']:.1f}" for one in found)
        peak = ", ".join(f"{one['peak_mb']:.0f}" for one in found)
        machines, stages = found[0].get("machines"), found[0].get("stages", [])
        cut = "; ".join(f"{m}: {b - a}" for m, (a, b) in zip(machines or [], stages, strict=True))
        lines.append(f"| {name} | {held} | {peak} | {cut or 'as many blocks each'} |")
    return lines


def fit_nowhere(contest: Contest, job: dict[str, Any]) -> str:
    """Every worker may use less than the model takes: whether it trains."""
    width, blocks = job["width"], job["blocks"]
    states = 2 * 4 * blocks * (8 * width * width + 5 * width)
    memory = [0.6 * states] * job["workers"]
    step_s = contest.gangline(copies=False, memory=memory)
    return (
        f"With {memory[0] / 1e6:.0f} MB per worker, where the states of the model take "
        f"{states / 1e6:.0f} MB: it trains, {step_s * 1e3:.0f} ms per step, "
        f"{contest.last[GANGLINE][0]['stages']}."
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true", help="few steps, to see that it runs")
    parser.add_argument(
        "--cuda", default="", help="percentages of the GPU, one per worker: 20,30,50"
    )
    parser.add_argument("--schedule", default="1f1b", choices=["1f1b", "gpipe"])
    parser.add_argument("--repeats", type=int, default=6)
    options = parser.parse_args()
    percentages = [int(part) for part in options.cuda.split(",") if part]
    speeds = [1.0] * len(percentages) or list(SPEEDS)
    job = {
        "workers": len(speeds),
        "speeds": speeds,
        "percentages": percentages,
        "blocks": 12,
        "width": (1024 if percentages else 192) if not options.short else 64,
        "batch": (2048 if percentages else 96) if not options.short else 24,
        "micro_batches": 12,
        "steps": 3 if options.short else 5,
        "schedule": options.schedule,
    }
    with WorkerPool() as pool:
        contest = Contest(pool, job)
        comparison = compare(
            {
                TORCH: contest.torch,
                GANGLINE: lambda: contest.gangline(copies=False),
                COPIES: lambda: contest.gangline(copies=True),
            },
            baseline=TORCH,
            repeats=2 if options.short else options.repeats,
        )
        held = describe(contest)
        unfit = fit_nowhere(contest, job)
    where = f"parts of a GPU, {percentages} %" if percentages else f"CPUs of speeds {speeds}"
    title = f"# Pipelines: {where}, {options.schedule}, {job['micro_batches']} micro-batches"
    text = "\n".join([title, "", comparison.to_markdown(), "", *held, "", unfit, ""])
    print(text)
    RESULTS.mkdir(exist_ok=True)
    name = "pipelines_gpu" if percentages else "pipelines"
    (RESULTS / f"{name}.md").write_text(text)
    (RESULTS / f"{name}.json").write_text(comparison.to_json())


if __name__ == "__main__":
    main()
