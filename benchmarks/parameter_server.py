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

On a machine with many cores `--streams 4` makes so many runs side by side, each on cores of its own,
and starts their workers from processes that have imported torch already (`warm_start.py`).
"""

from __future__ import annotations

import argparse
import os
import random
import threading
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from gangline.emulation.scaling import USABLE_FRACTION
from harness import RESULTS
from parameter_server_cells import (
    AIMS,
    ALIKE,
    CHOOSING_SEED,
    CONTENDERS,
    HOLDERS,
    QUICK_AIMS,
    SCENARIOS,
    WIDE,
    Aim,
    Book,
    Cell,
    Taken,
    report,
    to_target_s,
)
from parameter_server_runs import Stream, measure, streams_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def order_of(name: str, seed: int, contenders: Sequence[str]) -> list[str]:
    """Random, and the reverse of it every second time."""
    chosen = random.Random(f"{name} {seed // 2}").sample(list(contenders), len(contenders))
    return chosen[::-1] if seed % 2 else chosen


def choosing(options: argparse.Namespace) -> Iterator[tuple[Cell, Aim]]:
    """The runs that choose learning rates."""
    for scenario in options.choose_in:
        for model in options.models:
            aim = AIMS[model]
            for number in range(options.choosing):
                seed = CHOOSING_SEED + number
                chosen_with = dict.fromkeys(chooser(one, options) for one in options.contenders)
                for contender in order_of(f"{scenario} {model}", seed, list(chosen_with)):
                    for rate in aim.rates[: options.rates]:
                        yield Cell(scenario, model, contender, rate, seed), aim


def chooser(contender: str, options: argparse.Namespace) -> str:
    """The contender with which this one's learning rate is chosen."""
    return ALIKE.get(contender, contender) if options.alike else contender


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
        for contender in order_of("wide", seed, HOLDERS if seed < options.memory else ()):
            yield Cell("even", "wide", contender, WIDE.rates[0], seed), WIDE
        for scenario in options.scenarios:
            chosen_in = scenario if scenario in options.choose_in else options.choose_in[0]
            for model in options.models:
                for contender in order_of(f"{scenario} {model}", seed, options.contenders):
                    rate = chosen_rate(book, chosen_in, model, chooser(contender, options))
                    yield Cell(scenario, model, contender, rate, seed), AIMS[model]


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
    with streams_of(options.streams) as streams:
        options.deadline = time.monotonic() + options.within
        for stage in stages:
            missing = Missing(stage, book)
            threads = [
                threading.Thread(target=measure_some, args=(missing, stream, options, book))
                for stream in streams
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()


class Missing:
    """Hands out the cells that were not measured yet, each once."""

    def __init__(self, cells: Iterator[tuple[Cell, Aim]], book: Book) -> None:
        self._cells, self._book, self._lock = cells, book, threading.Lock()

    def take(self) -> tuple[Cell, Aim] | None:
        with self._lock:
            return next((one for one in self._cells if self._book.find(one[0]) is None), None)


def measure_some(missing: Missing, stream: Stream, options: argparse.Namespace, book: Book) -> None:
    """What one stream measures."""
    while time.monotonic() < options.deadline and (taken := missing.take()) is not None:
        cell, aim = taken
        found = measure(cell, aim, stream, options)
        book.add(found)
        how = found.error[-200:] or f"{to_target_s(found):.1f} s to its target"
        print(f"{cell}: {how}, {found.seconds:.1f} s in all", flush=True)


def main() -> None:
    """Measures, prints the tables, and keeps them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--models", nargs="+", choices=list(AIMS), default=list(AIMS))
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS))
    parser.add_argument("--seeds", type=int, default=5, help="that are compared")
    parser.add_argument("--choosing", type=int, default=1, help="seeds that choose learning rates")
    parser.add_argument("--rates", type=int, default=3, help="learning rates to choose from")
    parser.add_argument("--choose-in", nargs="+", choices=list(SCENARIOS), help="default: in all")
    parser.add_argument(
        "--alike", action="store_true", help="choose once for modes that step alike"
    )
    parser.add_argument("--memory", type=int, default=1, help="seeds that memory is compared by")
    parser.add_argument("--streams", type=int, default=1, help="runs side by side")
    use = f"part of the cores that workers compute on, default {USABLE_FRACTION:g}"
    parser.add_argument("--use", type=float, default=USABLE_FRACTION, help=use)
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
    if not 1 <= options.streams <= len(os.sched_getaffinity(0)):
        parser.error(f"--streams {options.streams}: every stream needs a core of its own at least")
    options.choose_in = options.choose_in or options.scenarios
    RESULTS.mkdir(exist_ok=True)
    name = f"{options.name}_quick" if options.quick else options.name
    book = Book(RESULTS / f"{name}.jsonl")
    measure_all(options, book)
    text = report(book)
    (RESULTS / f"{name}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
