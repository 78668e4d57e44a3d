# SPDX-License-Identifier: Apache-2.0
"""What `parameter_server.py` compares, what was measured of it, and the tables that show it."""

from __future__ import annotations

import threading
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.observe.served import staleness_bins
from harness import machine_facts
from paced_teams import table
from parameter_server_train import DDP, Judged

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CONTENDERS = (
    *("bsp", "asp", "ssp(1)", "ssp(4)", "ssp(16)", "backup(1)", "backup(2)"),
    *("full", "flexible", DDP),
)
ALIKE = {
    **dict.fromkeys(("bsp", "backup(1)", "backup(2)", "full", DDP), "bsp"),
    **dict.fromkeys(("asp", "ssp(1)", "ssp(4)", "ssp(16)"), "asp"),
}
"""Contenders that step alike, and the one of them that learning rates are chosen with (`--alike`)."""
HOLDERS = ("full", DDP, "bsp(replicas=0)", "asp", "asp(servers=2)")
"""Whose memory is compared."""
CHOOSING_SEED = 100
"""This one and those above it choose; those below it are compared."""
RESAMPLES = 2000


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster of four workers, and what is wrong with it."""

    speeds: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    has_pauses: bool = False
    bytes_per_s: float | None = None
    """Of each worker's own link; None: one host."""


SCENARIOS = {
    "even": Scenario(),
    "slow_worker": Scenario(speeds=(1.0, 1.0, 1.0, 0.2)),
    "pauses": Scenario(has_pauses=True),
    "slow_links": Scenario(bytes_per_s=25e6),
}


class Aim(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is trained with, and for."""

    samples: int
    epochs: int
    loss: float
    accuracy: float = 2.0
    """2: none."""
    rates: tuple[float, ...]


AIMS = {
    "lenet": Aim(samples=16_000, epochs=2, loss=0.15, accuracy=0.95, rates=(0.002, 0.004, 0.001)),
    "gpt": Aim(samples=8_000, epochs=2, loss=2.4, rates=(0.005, 0.01, 0.0025)),
}
QUICK_AIMS = {
    "lenet": Aim(samples=2048, epochs=2, loss=1.5, accuracy=0.5, rates=(0.004,)),
    "gpt": Aim(samples=1024, epochs=1, loss=3.3, rates=(0.01,)),
}
WIDE = Aim(samples=512, epochs=2, loss=0.0, rates=(0.001,))


class Cell(msgspec.Struct, frozen=True, order=True):
    """One comparison's one run."""

    scenario: str
    model: str
    contender: str
    rate: float
    seed: int
    is_quick: bool = False


def scenario_of(cell: Cell) -> Scenario:
    """Its scenario; a quick one has a worker less."""
    found = SCENARIOS[cell.scenario]
    return msgspec.structs.replace(found, speeds=found.speeds[1:]) if cell.is_quick else found


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What one run showed."""

    cell: Cell
    judged: Judged | None = None
    seconds: float = 0.0
    peak_mb: list[float] = []
    """By worker: how much its memory grew by training."""
    steps_mb: list[float] = []
    """The same in the first steps, before the end of an epoch."""
    staleness: dict[int, int] = {}
    dropped_samples: int = 0
    wait_fraction: float = 0.0
    load: float = 0.0
    """Of the machine, before."""
    error: str = ""


class Book:
    """What was measured so far, in a file to which lines are added."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        lines = path.read_text().splitlines() if path.exists() else []
        self.taken = [msgspec.json.decode(line, type=Taken) for line in lines]

    def find(self, cell: Cell) -> Taken | None:
        return next((one for one in reversed(self.taken) if one.cell == cell), None)

    def add(self, taken: Taken) -> None:
        with self._lock, self._path.open("a") as file:
            self.taken.append(taken)
            file.write(msgspec.json.encode(taken).decode() + "\n")

    def of(self, scenario: str, model: str, contender: str) -> list[Taken]:
        """Those that are compared."""
        key = (scenario, model, contender)
        return [
            one
            for one in self.taken
            if (one.cell.scenario, one.cell.model, one.cell.contender) == key
            and one.cell.seed < CHOOSING_SEED
            and not one.error
        ]


def to_target_s(taken: Taken) -> float:
    """Until 95 % was reached, or the loss, where a model has no such target."""
    judged = taken.judged
    if judged is None:
        return float("inf")
    at_s = judged.to_accuracy_s if taken.cell.model == "lenet" else judged.to_loss_s
    return float("inf") if at_s is None else at_s


def interval(values: Sequence[float]) -> str:
    """The median, and the interval that resampling gives it."""
    drawn = np.random.default_rng(0).choice(values, (RESAMPLES, len(values)))
    medians = np.sort(np.median(drawn, axis=1))
    low, high = medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]
    spread = f" [{low:.1f}, {high:.1f}]" if len(values) > 1 else ""
    return f"{median(values):.1f}{spread}".replace("inf", "never")


def rows_of(book: Book, scenario: str, model: str) -> list[list[str]]:
    """A row for each contender."""
    rows = []
    for contender in CONTENDERS:
        found = book.of(scenario, model, contender)
        if not found:
            continue
        losses = [
            float("inf")
            if one.judged is None or one.judged.to_loss_s is None
            else one.judged.to_loss_s
            for one in found
        ]
        best = median(one.judged.accuracy for one in found if one.judged is not None)
        rows.append(
            [
                contender,
                f"{found[-1].cell.rate:g}",
                str(len(found)),
                interval([to_target_s(one) for one in found]) if model == "lenet" else "–",
                interval(losses),
                interval([one.seconds for one in found]),
                f"{best:.1%}",
                "–" if contender == DDP else f"{median(one.wait_fraction for one in found):.0%}",
                staleness_of(found),
                f"{median(one.dropped_samples for one in found):.0f}",
            ]
        )
    return rows


def staleness_of(found: Sequence[Taken]) -> str:
    """All updates of these runs together."""
    counts: Counter[int] = Counter()
    for one in found:
        counts.update(one.staleness)
    if not counts:
        return "–"
    return ", ".join(f"{at}: {part:.0%}" for at, part in staleness_bins(counts))


def aimed(model: str, is_quick: bool) -> str:
    aim = (QUICK_AIMS if is_quick else AIMS)[model]
    accuracy = f"{aim.accuracy:.0%} and " if aim.accuracy <= 1 else ""
    return f"{model}: to {accuracy}a loss of {aim.loss:g}"


def held(steps_mb: float, peak_mb: float) -> str:
    return f"{steps_mb:.0f}, {peak_mb:.0f}"


def memory_table(book: Book) -> str | None:
    """By how much each worker's memory grew in its first steps, and at most; None: not measured."""
    rows = []
    for contender in HOLDERS:
        if found := book.of("even", "wide", contender):
            steps = np.median([one.steps_mb for one in found], axis=0)
            peaks = np.median([one.peak_mb for one in found], axis=0)
            rows.append([contender, *map(held, steps, peaks)])
    workers = [f"worker {number}" for number in range(len(rows[0]) - 1)] if rows else []
    return table(["contender", *workers], rows) if rows else None


HEAD = [
    *(
        "contender",
        "rate",
        "seeds",
        "to the accuracy (s)",
        "to the loss (s)",
        "all epochs (s)",
        "accuracy",
    ),
    *("waiting", "staleness", "samples dropped"),
]


def report(book: Book) -> str:
    """All tables."""
    parts = ["# Parameter servers"]
    for scenario in SCENARIOS:
        for model in AIMS:
            rows = rows_of(book, scenario, model)
            if rows:
                is_quick = book.taken[-1].cell.is_quick
                parts.append(f"## {scenario}, {aimed(model, is_quick)}\n\n{table(HEAD, rows)}")
    if (memory := memory_table(book)) is not None:
        title = "## Memory: 67 MB of parameters, Adam; growth in steps, and at most, MB"
        parts.append(f"{title}\n\n{memory}")
    errors = [one for one in book.taken if one.error]
    if errors:
        parts.append("\n".join(f"failed: {one.cell}: {one.error[-300:]}" for one in errors))
    loads = [one.load for one in book.taken]
    if loads:
        parts.append(f"Load before the runs: {min(loads):.1f} to {max(loads):.1f}.")
    facts = ", ".join(f"{key} {value}" for key, value in machine_facts().items())
    return "\n\n".join([*parts, f"Machine: {facts}."]) + "\n"
