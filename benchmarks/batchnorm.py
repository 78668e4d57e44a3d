# SPDX-License-Identifier: Apache-2.0
"""What BatchNorm costs in accuracy when the batch is cut: one process, workers, and what helps.

All contenders train the same network on the same global batches of 32 for each seed, one after the
other. Only by what BatchNorm normalises differs.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import mean, stdev

import msgspec

from batchnorm_worker import Case, train
from gangline.testing import WorkerPool
from harness import RESULTS, machine_facts
from paced_teams import table

BATCH = 32
DEADLINE_S = 600.0
CONTENDERS: dict[str, tuple[tuple[float, ...], dict[str, object]]] = {
    "one process": ((1.0,), {}),
    "three equal workers": ((1.0, 1.0, 1.0), {}),
    "shares 28, 2, 2": ((28.0, 2.0, 2.0), {}),
    "shares 28, 2, 2 with min_share=8: 16, 8, 8": ((28.0, 2.0, 2.0), {"min_share": 8}),
    "shares 28, 2, 2 with sync_batchnorm": ((28.0, 2.0, 2.0), {"sync_batchnorm": True}),
}


def main() -> None:
    """Prints the table and keeps it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="../shared/data", help="the folder that has mnist/")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="3 seeds, half the samples")
    options = parser.parse_args()
    seeds = 3 if options.quick else options.seeds
    samples = 960 if options.quick else 1920
    found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    began_s = time.monotonic()
    with WorkerPool() as pool:
        for seed in range(seeds):
            for name, (shares, more) in CONTENDERS.items():
                case = Case(
                    data=str(Path(options.data).resolve() / "mnist"),
                    seed=seed,
                    samples=samples,
                    epochs=3,
                    batch=BATCH,
                    tested=2000,
                    shares=shares,
                    options=more,
                )
                (accuracy, *_) = pool.run(train, len(shares), args=(case,), deadline_s=DEADLINE_S)
                found[name].append(accuracy)
                print(f"seed {seed}, {name}: {accuracy:.1f} %", flush=True)
    text = to_markdown(found, samples=samples, took_s=time.monotonic() - began_s)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "batchnorm.md").write_text(text)
    facts = json.dumps({"machine": machine_facts(), "accuracy": found}, indent=1)
    (RESULTS / "batchnorm.json").write_text(facts)
    print(text)


def to_markdown(found: dict[str, list[float]], *, samples: int, took_s: float) -> str:
    """A row per contender: each seed's accuracy, mean and spread."""
    rows = [
        [name, " ".join(f"{one:.1f}" for one in each), f"{mean(each):.1f}", f"{stdev(each):.1f}"]
        for name, each in found.items()
    ]
    shown = table(["BatchNorm over", "accuracy by seed (%)", "mean", "deviation"], rows)
    facts = msgspec.json.encode(machine_facts()).decode()
    return (
        f"{shown}\n\n{samples} images of MNIST, three epochs, global batch {BATCH}, 20 BatchNorm "
        f"layers; took {took_s:.0f} s. {facts}\n"
    )


if __name__ == "__main__":
    main()
