# SPDX-License-Identifier: Apache-2.0
"""Even workers: what a step costs against plain DistributedDataParallel over gloo.

    python benchmarks/even_ddp.py
    python benchmarks/even_ddp.py --workers 2 --models lenet5 --transports gloo wire --repeats 6

Every contender is a team of worker processes with one thread each, alive at the same time and
asleep while another one runs. A measurement is a few steps, timed by each worker; the slowest
counts. Peak memory is that of the worker that needed most.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.engines.coordination import coordinator_process
from gangline.engines.job import Job
from gangline.spec.cluster import Cluster
from gangline.spec.config import ExchangeConfig, RunConfig
from harness import Comparison, compare, save
from teams import Team
from training_worker import Part

if TYPE_CHECKING:
    from collections.abc import Iterator

BASELINE = "ddp"
WORKER = [sys.executable, str(Path(__file__).with_name("training_worker.py"))]
STEPS = {"lenet5": 20, "wide_mlp": 4}
"""Steps per measurement: enough to last a few tenths of a second."""
START_TIMEOUT_S = 120.0
TIMEOUT_S = 60.0


class Contestant:
    """A team of workers, and the peak memory that it has reported."""

    def __init__(self, team: Team, *, steps: int) -> None:
        self._team = team
        self._steps = steps
        self.peak_bytes = 0.0
        self.measure(timeout_s=START_TIMEOUT_S)

    def measure(self, *, timeout_s: float = TIMEOUT_S) -> float:
        """Seconds per step, over a few steps of the slowest worker."""
        answers = self._team.ask({"steps": self._steps}, timeout_s=timeout_s)
        self.peak_bytes = max(self.peak_bytes, *(answer["peak_bytes"] for answer in answers))
        return float(max(answer["seconds"] for answer in answers)) / self._steps


@contextlib.contextmanager
def contestant(
    name: str, *, model: str, workers: int, options: argparse.Namespace
) -> Iterator[Contestant]:
    """Starts the workers of one contender, and ends them."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gangline-bench-"))
        launches: list[dict[str, str]] = [{} for _ in range(workers)]
        if name != BASELINE:
            job = as_gangline_run(
                Path(folder), workers=workers, transport=name.removeprefix("gangline-")
            )
            stack.enter_context(coordinator_process(job, os.environ))
            launches = [launch.to_environment() for launch in job.launches()]
        parts = [
            Part(
                contender=name,
                model=model,
                batch=options.batch,
                rank=rank,
                workers=workers,
                folder=folder,
                set_to_none=options.zero_grad == "none",
            )
            for rank in range(workers)
        ]
        environments = [
            {**part.environment(), **launch} for part, launch in zip(parts, launches, strict=True)
        ]
        team = stack.enter_context(Team(WORKER, environments=environments))
        yield Contestant(team, steps=STEPS[model])


def as_gangline_run(folder: Path, *, workers: int, transport: str) -> Job:
    """The job that `gangline run` would make of the worker script."""
    return Job(
        config=RunConfig(
            run="bench",
            cluster=Cluster.of_speeds((1.0,) * workers),
            exchange=ExchangeConfig(transport=transport),
        ),
        run_dir=folder,
        script=Path(WORKER[-1]),
    )


def compare_teams(options: argparse.Namespace, *, model: str, workers: int) -> Comparison:
    """One model on one number of workers."""
    names = [BASELINE, *(f"gangline-{transport}" for transport in options.transports)]
    with contextlib.ExitStack() as stack:
        teams = {
            name: stack.enter_context(
                contestant(name, model=model, workers=workers, options=options)
            )
            for name in names
        }
        twin = stack.enter_context(
            contestant(BASELINE, model=model, workers=workers, options=options)
        )
        comparison = compare(
            {name: team.measure for name, team in teams.items()},
            baseline=BASELINE,
            repeats=options.repeats,
            warmup=2,
            twin=twin.measure,
            seed=options.seed,
        )
        peaks = {name: team.peak_bytes for name, team in teams.items()}
        peaks[f"{BASELINE} (again)"] = twin.peak_bytes
    base = peaks[BASELINE]
    return comparison.with_extra(
        "peak memory (MB)", {name: peak / 1e6 for name, peak in peaks.items()}
    ).with_extra("over ddp (MB)", {name: (peak - base) / 1e6 for name, peak in peaks.items()})


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--transports", nargs="+", default=["gloo"])
    parser.add_argument("--repeats", type=int, default=12, help="blocks of two runs each")
    parser.add_argument("--batch", type=int, default=64, help="samples per worker")
    parser.add_argument("--zero-grad", choices=["none", "zeros"], default="none")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Compares all asked cases, and writes and prints the results."""
    options = parse_options()
    comparisons = {}
    for model in options.models:
        for workers in options.workers:
            title = f"{model}, {workers} workers, {options.batch} samples each"
            comparisons[title] = compare_teams(options, model=model, workers=workers)
            print(f"## {title}\n\n{comparisons[title].to_markdown()}\n", flush=True)
    save("even_ddp", comparisons)


if __name__ == "__main__":
    main()
