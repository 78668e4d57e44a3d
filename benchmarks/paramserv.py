# SPDX-License-Identifier: Apache-2.0
"""The modes of `gangline.paramserv` with one worker that is 5 times slower: time to a loss on MNIST.

Softmax regression, 4 workers that are threads. Each batch takes as long as a sleep says, so that two
cores are enough for all of them. In each seed all modes run once, in an order of its own. Each mode
has the learning rate that was best for it with other seeds (`--choose`).
"""

from __future__ import annotations

import argparse
import os
import random
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import gangline
from gangline.zoo.idx_files import read_idx
from harness import machine_facts
from paced_teams import table, write_results

RATE_OF = {
    "bsp": 0.8,
    "asp": 0.2,
    "ssp(1)": 0.2,
    "ssp(4)": 0.2,
    "ssp(16)": 0.2,
    "backup(1)": 0.8,
    "backup(2)": 0.8,
}
"""Of RATES, one that none is clearly better than for the mode, by `--choose`."""
RATES = (0.1, 0.2, 0.4, 0.8, 1.6)
CHOOSING = range(1000, 1003)
"""The seeds for choosing."""
WORKERS = 4
BATCH = 25


class Data(NamedTuple):
    """Rows of pixels in [0, 1], and their digits."""

    features: np.ndarray
    labels: np.ndarray


class Race(NamedTuple):
    """One run."""

    seconds: float
    """To the loss; infinite if it was not reached."""
    updates: int
    staleness: dict[int, int]
    dropped: int


def read(folder: Path, part: str, rows: int) -> Data:
    """The first rows of MNIST."""
    pixels = read_idx(folder / f"{part}-images-idx3-ubyte.gz", num_dimensions=3)[:rows]
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz", num_dimensions=1)[:rows]
    features = pixels.reshape(len(pixels), -1).numpy().astype(np.float32) / 255
    return Data(features, labels.numpy().astype(np.int64))


def probabilities(model: list[np.ndarray], features: np.ndarray) -> np.ndarray:
    """What the model takes each row for."""
    scores = features @ model[0] + model[1]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def loss_of(model: list[np.ndarray], data: Data) -> float:
    """The mean cross-entropy."""
    found = probabilities(model, data.features)[np.arange(len(data.labels)), data.labels]
    return float(-np.log(np.maximum(found, 1e-12)).mean())


def update(model: list[np.ndarray], batch: Data) -> list[np.ndarray]:
    """The mean gradients of a batch."""
    wrong = probabilities(model, batch.features)
    wrong[np.arange(len(batch.labels)), batch.labels] -= 1
    return [batch.features.T @ wrong / len(wrong), wrong.mean(axis=0)]


class Field:
    """Workers of unlike speed, and what the model was at which time."""

    def __init__(self, *, batch_s: float, slower: float) -> None:
        self._batch_s = batch_s
        self._slower = slower
        self._slow: int | None = None
        self._lock = threading.Lock()
        self._seen: list[tuple[float, list[np.ndarray]]] = []
        self.started = time.monotonic()

    def update(self, model: Any, rate: float, features: Any, labels: Any) -> Any:
        """Computes, and sleeps: the first thread that comes is the slow one, until the end."""
        with self._lock:
            self._slow = self._slow or threading.get_ident()
            is_slow = self._slow == threading.get_ident()
        time.sleep(self._batch_s * (self._slower if is_slow else 1))
        return update(model, Data(features, labels))

    def aggregate(self, model: Any, rate: float, gradients: Any) -> Any:
        """A step, which is looked at afterwards. The server calls this, one at a time."""
        stepped = [one - rate * by for one, by in zip(model, gradients, strict=True)]
        self._seen.append((time.monotonic() - self.started, stepped))
        return stepped

    def seconds_to(self, loss: float, data: Data) -> float:
        """When the loss was reached first."""
        reached = (at for at, model in self._seen if loss_of(model, data) <= loss)
        return next(reached, float("inf"))


def run(
    mode: str, rate: float, data: tuple[Data, Data], options: argparse.Namespace, seed: int
) -> Race:
    """Trains once on the first part of the data, and looks at the loss of the second."""
    train, test = data
    order = np.random.default_rng(seed).permutation(len(train.labels))
    field = Field(batch_s=options.batch_s, slower=options.slower)
    trained = gangline.paramserv(
        [np.zeros((784, 10), np.float32), np.zeros(10, np.float32)],
        train.features[order],
        train.labels[order],
        field.update,
        field.aggregate,
        mode=mode,
        epochs=options.epochs,
        workers=WORKERS,
        batch_size=BATCH,
        hyperparameters=rate,
        seed=seed,
    )
    seconds = field.seconds_to(options.loss, test)
    return Race(seconds, trained.updates, trained.staleness, trained.dropped)


def row_of(mode: str, rate: float, races: list[Race]) -> list[str]:
    """A line of the table."""
    seconds = sorted(race.seconds for race in races)
    stale = sum(lag * number for race in races for lag, number in race.staleness.items())
    updates, dropped = sum(race.updates for race in races), sum(race.dropped for race in races)
    return [
        f"`{mode}`",
        f"{rate:g}",
        f"{median(seconds):.2f} [{seconds[0]:.2f}, {seconds[-1]:.2f}]",
        f"{stale / updates:.1f}, {max(max(race.staleness) for race in races)} at most",
        f"{dropped / (updates + dropped):.0%}",
    ]


def race_all(
    pairs: list[tuple[str, float]],
    seeds: range,
    data: tuple[Data, Data],
    options: argparse.Namespace,
) -> dict[tuple[str, float], list[Race]]:
    """All modes and rates for each seed, in an order of its own."""
    races: dict[tuple[str, float], list[Race]] = {pair: [] for pair in pairs}
    for seed in seeds:
        for mode, rate in random.Random(seed).sample(pairs, len(pairs)):
            races[mode, rate].append(run(mode, rate, data, options, seed))
    return races


def main() -> None:
    """Runs all modes in alternation, prints a table, and keeps what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--loss", type=float, default=0.65)
    parser.add_argument("--batch-s", type=float, default=0.004)
    parser.add_argument("--slower", type=float, default=5.0)
    parser.add_argument("--choose", action="store_true", help="try learning rates instead")
    parser.add_argument("--data", default=os.environ.get("GANGLINE_DATA", "../shared/data"))
    options = parser.parse_args()
    folder = Path(options.data).resolve() / "mnist"
    if not folder.is_dir():
        parser.error(f"there is no MNIST in {options.data}; give --data, or set GANGLINE_DATA")
    data = read(folder, "train", options.rows), read(folder, "t10k", 2000)
    pairs, seeds = list(RATE_OF.items()), range(options.seeds)
    if options.choose:
        pairs, seeds = [(mode, rate) for mode in RATE_OF for rate in RATES], CHOOSING
    races = race_all(pairs, seeds, data, options)
    head = ["mode", "learning rate", "to the loss (s)", "staleness", "dropped"]
    rows = [row_of(*pair, races[pair]) for pair in pairs]
    text = (
        f"# Time to a loss of {options.loss:g} on MNIST\n\nOne of {WORKERS} workers is "
        f"{options.slower:g} times slower; median [least, most] of {len(seeds)} seeds.\n\n"
    )
    name = "paramserv_choose" if options.choose else "paramserv"
    kept = {f"{mode} {rate:g}": races[mode, rate] for mode, rate in pairs}
    write_results(name, text + table(head, rows), {"machine": machine_facts(), "races": kept})


if __name__ == "__main__":
    main()
