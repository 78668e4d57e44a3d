# SPDX-License-Identifier: Apache-2.0
"""A run by an engine beside the same run on this machine, alternately: start, pace, recovery.

    GANGLINE_ENGINES=.cache/engines python benchmarks/engines.py --repeats 6

It takes the environment that `make test-engines` has made. Start is the time from the command to the
first step, pace that of a step, recovery the longest step after a worker was killed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gangline.eventlog import read_run
from gangline.spec.event import StepDone
from harness import Contender, compare, save

if TYPE_CHECKING:
    from collections.abc import Callable

WORKERS = 2
KILL_STEP, STEPS = 40, 200
_SCRIPT = f"""\
import os, signal, torch, gangline
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
gangline.init()
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn({STEPS * 32}, 256)), batch_size=32)
model, optimizer, loader = gangline.prepare(model, optimizer, loader)
me, step = gangline.rank(), 0
for (x,) in loader:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    step += 1
    if os.environ.get("BENCH_KILL") and step == {KILL_STEP} and me == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""
FLAGS: dict[str, list[str]] = {
    "local": ["--nodes", str(WORKERS)],
    "mpi": ["--on", "mpi", "--mpi-processes", str(WORKERS), "--mpi-arguments=--oversubscribe"],
    "mpi, transport mpi": [
        *("--on", "mpi", "--transport", "mpi", "--mpi-processes", str(WORKERS)),
        "--mpi-arguments=--oversubscribe",
    ],
}


def times(python: str, flags: list[str], *, kills: bool) -> tuple[float, list[float]]:
    """When the first step was done, and how long each later one took, by worker 0's log."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(_SCRIPT)
        listen = ["--listen", "127.0.0.1"] if "--on" in flags else []
        begun = time.time()
        subprocess.run(
            [
                *(python, "-m", "gangline.cli.main", "run", "--everybody", "--quiet"),
                *("--no-report", "--run-dir", "run", *flags, *listen, "train.py"),
            ],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **({"BENCH_KILL": "1"} if kills else {})},
            check=True,
            timeout=300,
        )
        events: list[Any] = list(read_run(Path(folder) / "run", notes=[]))
    done = [event.t for event in events if isinstance(event, StepDone) and event.worker == 0]
    return done[0] - begun, [after - before for before, after in itertools.pairwise(done)]


def measured(python: str, flags: list[str], what: str) -> Contender:
    """One of the three figures of a run."""

    def start() -> float:
        return times(python, flags, kills=False)[0]

    def pace() -> float:
        steps = times(python, flags, kills=False)[1]
        return sum(steps) / len(steps)

    def recovery() -> float:
        return max(times(python, flags, kills=True)[1][KILL_STEP - 5 :])

    chosen: dict[str, Callable[[], float]] = {"start": start, "pace": pace, "recovery": recovery}
    return chosen[what]


def main() -> None:
    """Prints the ratios and keeps them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--only", choices=["start", "pace", "recovery"])
    given = parser.parse_args()
    folder = os.environ.get("GANGLINE_ENGINES")
    if folder is None:
        sys.exit("set GANGLINE_ENGINES to the folder that `make test-engines` has made")
    python = str(Path(folder).resolve() / "openmpi" / "bin" / "python")
    found = {}
    for what in [given.only] if given.only else ["start", "pace", "recovery"]:
        contenders = {name: measured(python, flags, what) for name, flags in FLAGS.items()}
        found[what] = compare(contenders, baseline="local", repeats=given.repeats)
        print(what, found[what], sep="\n")
    save("engines", found)


if __name__ == "__main__":
    main()
