# SPDX-License-Identifier: Apache-2.0
"""How soon a model is good enough by parameter servers, beside full, flexible and DDP; and memory.

    python benchmarks/parameter_server.py              # all cells: hours; goes on where it was left
    python benchmarks/parameter_server.py --scenarios slow_worker --models lenet --within 1500
    python benchmarks/parameter_server.py --quick      # each contender once, with three workers

Real processes, by `gangline run`; four workers. A cell is a scenario, a model and a contender. Learning
rates are chosen in each cell, as the soonest at its target (else the lowest loss), with seeds that are
not compared; then the contenders take turns, seed by seed, in a random order and its reverse. LeNet-5
on MNIST is to reach 95 %, and a loss; a char GPT on Shakespeare a loss. Whatever was measured is kept
in results/parameter_server.jsonl, line by line. Slow links need root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from gangline.emulation.scaling import scale_speeds
from gangline.eventlog import read_run
from gangline.observe import summarize
from harness import RESULTS
from parameter_server_cells import (
    AIMS,
    CHOOSING_SEED,
    CONTENDERS,
    HOLDERS,
    QUICK_AIMS,
    SCENARIOS,
    WIDE,
    Aim,
    Book,
    Cell,
    Scenario,
    Taken,
    report,
    scenario_of,
    to_target_s,
)
from parameter_server_train import DDP, Judged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SCRIPT = Path(__file__).with_name("parameter_server_train.py")


def cluster_file(scenario: Scenario) -> str:
    """One node for each worker; they pace themselves, so that DDP is as slow."""
    lines = []
    for number in range(len(scenario.speeds)):
        lines += ["[[nodes]]", f'name = "n{number}"']
        if scenario.bytes_per_s is not None:
            lines.append(f"bytes_per_s = {scenario.bytes_per_s:.0f}")
    return "\n".join(lines) + "\n"


def command_of(cell: Cell, aim: Aim, folder: Path, data: Path) -> list[str]:
    """The command that a user would give."""
    scenario = scenario_of(cell)
    (folder / "cluster.toml").write_text(cluster_file(scenario))
    # Speeds that are all 1 would not be scaled, and the cores would be the limit.
    asked = [0.999 * speed for speed in scenario.speeds]
    speeds = scale_speeds(asked, len(os.sched_getaffinity(0))).speeds
    flags = ["--cluster", str(folder / "cluster.toml"), "--run-dir", str(folder / "run")]
    flags += ["--no-report", "--devices", "cpu"]
    if cell.contender != DDP:
        flags += ["--sync", cell.contender]
    own = {
        **{"model": cell.model, "contender": cell.contender, "rate": cell.rate, "seed": cell.seed},
        **{"samples": aim.samples, "epochs": aim.epochs, "loss": aim.loss, "folder": folder},
        **{"accuracy": aim.accuracy, "data": data, "speeds": ",".join(map(str, speeds))},
    }
    given = [part for name, value in own.items() for part in (f"--{name}", str(value))]
    given += ["--pauses"] if scenario.has_pauses else []
    return [sys.executable, "-m", "gangline.cli.main", "run", *flags, str(SCRIPT), *given]


def measure(cell: Cell, aim: Aim, options: argparse.Namespace) -> Taken:
    """One run, from its start to its end."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="gangline-bench-") as text:
        folder = Path(text)
        said = run(command_of(cell, aim, folder, options.data), folder, options.timeout)
        held = [json.loads(path.read_bytes()) for path in sorted(folder.glob("held-*.json"))]
        if said is not None or len(held) < len(scenario_of(cell).speeds):
            return Taken(cell=cell, load=load, error=said or "a worker did not end its loop")
        judged = folder / "judged.json"
        summary = None if cell.contender == DDP else summarize(read_run(folder / "run"))
        served = None if summary is None else summary.served
        return Taken(
            cell=cell,
            judged=msgspec.json.decode(judged.read_bytes(), type=Judged)
            if judged.exists()
            else None,
            seconds=max(one["seconds"] for one in held),
            peak_mb=[one["peak_mb"] for one in held],
            steps_mb=[one["steps_mb"] for one in held],
            staleness={} if served is None else served.staleness,
            dropped_samples=0 if served is None else served.dropped_samples,
            wait_fraction=0.0 if summary is None else summary.wait_fraction or 0.0,
            load=load,
        )


def run(command: Sequence[str], folder: Path, timeout_s: float) -> str | None:
    """None where it ended well, else the end of what it said."""
    log = folder / "log"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        code = -1
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(15)
    return None if code == 0 else f"exit code {code}: {log.read_text()[-1500:]}"


def order_of(name: str, seed: int, contenders: Sequence[str]) -> list[str]:
    """Random, and the reverse of it every second time."""
    chosen = random.Random(f"{name} {seed // 2}").sample(list(contenders), len(contenders))
    return chosen[::-1] if seed % 2 else chosen


def choosing(options: argparse.Namespace) -> Iterator[tuple[Cell, Aim]]:
    """The runs that choose learning rates."""
    for scenario in options.scenarios:
        for model in options.models:
            aim = AIMS[model]
            for number in range(options.choosing):
                seed = CHOOSING_SEED + number
                for contender in order_of(f"{scenario} {model}", seed, options.contenders):
                    for rate in aim.rates:
                        yield Cell(scenario, model, contender, rate, seed), aim


def chosen_rate(book: Book, scenario: str, model: str, contender: str) -> float:
    """The soonest at the target, by its median; of those that never were, the lowest loss."""
    by_rate: dict[float, list[Taken]] = {}
    for one in book.taken:
        key = (one.cell.scenario, one.cell.model, one.cell.contender)
        if key == (scenario, model, contender) and one.cell.seed >= CHOOSING_SEED and one.judged:
            by_rate.setdefault(one.cell.rate, []).append(one)
    if not by_rate:
        return AIMS[model].rates[0]

    def badness(rate: float) -> tuple[float, float]:
        found = by_rate[rate]
        losses = [one.judged.loss for one in found if one.judged is not None]
        return median(map(to_target_s, found)), median(losses)

    return min(by_rate, key=badness)


def comparing(options: argparse.Namespace, book: Book) -> Iterator[tuple[Cell, Aim]]:
    """The runs that are compared: rates are known by now."""
    for seed in range(options.seeds):
        for scenario in options.scenarios:
            for model in options.models:
                for contender in order_of(f"{scenario} {model}", seed, options.contenders):
                    rate = chosen_rate(book, scenario, model, contender)
                    yield Cell(scenario, model, contender, rate, seed), AIMS[model]
        for contender in order_of("wide", seed, HOLDERS if options.memory else ()):
            yield Cell("even", "wide", contender, WIDE.rates[0], seed), WIDE


def quick(options: argparse.Namespace) -> Iterator[tuple[Cell, Aim]]:
    """Every contender once, each in the next scenario with the next model."""
    for number, contender in enumerate(options.contenders):
        model = options.models[number % len(options.models)]
        aim = QUICK_AIMS[model]
        scenario = options.scenarios[number % len(options.scenarios)]
        yield Cell(scenario, model, contender, aim.rates[0], 0, True), aim
    for contender in HOLDERS if options.memory else ():
        yield Cell("even", "wide", contender, WIDE.rates[0], 0, True), WIDE


def measure_all(options: argparse.Namespace, book: Book) -> None:
    """Measures what is missing, until the time is over."""
    stages = [quick(options)] if options.quick else [choosing(options), comparing(options, book)]
    for stage in stages:
        for cell, aim in stage:
            if time.monotonic() > options.deadline:
                return
            if book.find(cell) is not None:
                continue
            taken = measure(cell, aim, options)
            book.add(taken)
            how = taken.error[-200:] or f"{to_target_s(taken):.1f} s to its target"
            print(f"{cell}: {how}, {taken.seconds:.1f} s in all", flush=True)


def main() -> None:
    """Measures, prints the tables, and keeps them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--models", nargs="+", choices=list(AIMS), default=list(AIMS))
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS))
    parser.add_argument("--seeds", type=int, default=5, help="that are compared")
    parser.add_argument("--choosing", type=int, default=1, help="seeds that choose learning rates")
    parser.add_argument("--no-memory", dest="memory", action="store_false")
    parser.add_argument("--within", type=float, default=1e9, help="seconds; then nothing is begun")
    parser.add_argument("--timeout", type=float, default=300.0, help="of one run, in seconds")
    parser.add_argument("--quick", action="store_true", help="one short run of each contender")
    parser.add_argument("--name", default="parameter_server", help="of the files with the results")
    default = os.environ.get("GANGLINE_DATA", "../shared/data")
    parser.add_argument("--data", type=Path, default=Path(default))
    options = parser.parse_args()
    options.data = options.data.resolve()
    if not (options.data / "mnist").exists():
        parser.error(f"there is no MNIST in {options.data}; give --data, or set GANGLINE_DATA")
    if os.geteuid() != 0 and "slow_links" in options.scenarios:
        print("slow_links is left out: emulated networks need root", flush=True)
        options.scenarios.remove("slow_links")
    options.deadline = time.monotonic() + options.within
    RESULTS.mkdir(exist_ok=True)
    name = f"{options.name}_quick" if options.quick else options.name
    book = Book(RESULTS / f"{name}.jsonl")
    measure_all(options, book)
    text = report(book)
    (RESULTS / f"{name}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
