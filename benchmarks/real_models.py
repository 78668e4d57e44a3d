# SPDX-License-Identifier: Apache-2.0
"""Real models on unlike parts of one GPU, on one host and behind slow links: does anybody lose?

    python benchmarks/real_models.py                           # all cells: needs a GPU and MPS
    python benchmarks/real_models.py --cells gpt26-host gpt26-1g --seconds 20
    python benchmarks/real_models.py --cells tiny --seconds 5  # also without a GPU: shows nothing

A cell is a model, the parts that MPS cuts the GPU into, and the link that each part is behind. In each
cell the contenders take turns, in a random order and then in its reverse:

    alone      the strongest part, in plain torch, with the whole batch
    sum        all parts at the same time, in plain torch, each for itself: no exchange
    ddp        DistributedDataParallel over gloo, equal shares
    full, auto, flexible    gangline with `--sync` so; full is the default

Throughput is counted in samples whose step ended in the seconds that are measured, after a warm-up;
what was lost before, against the strongest part alone, is given in seconds (start-up regret). Whatever
was measured is kept in results/real_models.jsonl, and a cell goes on where it was left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import msgspec
import torch

from gpu_mix import PERCENTAGE, divided_gpu
from harness import RESULTS, machine_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).with_name("real_models_train.py")
KEPT = RESULTS / "real_models.jsonl"
CONTENDERS = ("alone", "sum", "ddp", "full", "auto", "flexible")
START_S = 90.0
POLL_S = 0.1


class Cell(msgspec.Struct, frozen=True):
    """One comparison."""

    model: str
    parts: tuple[int, ...]
    batch: int
    gbit: float | None = None
    """Each part's own link; None: one host."""


PARTS = (50, 25, 10)
"""Per cent of the GPU. On the machine of our figures some percentages above 50, and 40, give NaN in
plain torch, in matrix products of bfloat16; these do not."""
CELLS = {
    "gpt26-host": Cell("gpt26", PARTS, 256),
    "gpt26-10g": Cell("gpt26", PARTS, 256, 10),
    "gpt26-1g": Cell("gpt26", PARTS, 256, 1),
    "gpt26-0.1g": Cell("gpt26", PARTS, 256, 0.1),
    "gpt26-even-host": Cell("gpt26", (50, 50), 256),
    "gpt26-even-1g": Cell("gpt26", (50, 50), 256, 1),
    "gpt124-host": Cell("gpt124", PARTS, 64),
    "gpt124-10g": Cell("gpt124", PARTS, 64, 10),
    "resnet50-host": Cell("resnet50", PARTS, 512),
    "resnet50-10g": Cell("resnet50", PARTS, 512, 10),
    "tiny": Cell("tiny", (60, 25), 32),
    "tiny-1g": Cell("tiny", (60, 25), 32, 1),
}


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of one contender showed."""

    cell: str
    contender: str
    samples_per_s: float
    early_samples: int
    """What was done in the warm-up."""
    early_s: float
    loss: float | None
    """The last that was looked at; None where it is not finite: the setting computes wrongly."""
    per_worker: list[float]
    predicted_per_s: float | None = None
    """What the job itself expected of the workers that it went on with; None: it did not say."""
    error: str = ""


def cluster_file(cell: Cell, parts: tuple[int, ...]) -> str:
    """A cluster file with one node for each part."""
    lines = []
    for number, part in enumerate(parts):
        lines += ["[[nodes]]", f'name = "part{number}"']
        if cell.gbit is not None:
            lines.append(f"bytes_per_s = {cell.gbit * 1e9 / 8:.0f}")
        if torch.cuda.is_available():
            lines += ["[nodes.environment]", f'{PERCENTAGE} = "{part}"']
    return "\n".join(lines) + "\n"


def run_command(cell: Cell, contender: str, folder: Path) -> list[str]:
    """The command that a user would give."""
    parts = cell.parts[:1] if contender == "alone" else cell.parts
    (folder / "cluster.toml").write_text(cluster_file(cell, parts))
    way = {"alone": "plain", "sum": "plain", "ddp": "ddp"}.get(contender, "gangline")
    flags = ["--cluster", str(folder / "cluster.toml"), "--run-dir", str(folder / "run")]
    if contender in ("auto", "flexible"):
        flags += ["--sync", contender]
    own = [cell.model, way, "--batch", str(cell.batch), "--parts", ",".join(map(str, parts))]
    command = [sys.executable, "-m", "gangline.cli.main", "run", *flags]
    return [*command, str(SCRIPT), *own, "--folder", str(folder)]


def measure(name: str, contender: str, options: argparse.Namespace) -> Taken:
    """One run: from its first step on, so long for the warm-up, and so long to be measured."""
    cell = CELLS[name]
    with tempfile.TemporaryDirectory(prefix="gangline-bench-") as text:
        folder = Path(text)
        log = folder / "log"
        with log.open("w") as output:
            process = subprocess.Popen(
                run_command(cell, contender, folder),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            began = _first_step(folder, process)
            end = began + options.warm_up + options.seconds
            while time.time() < end and process.poll() is None:
                time.sleep(POLL_S)
            is_over = process.poll() is not None
        finally:
            _end(process)
        if options.logs is not None:
            _keep_logs(folder, options.logs / f"{name}-{contender}")
        if began == float("inf") or is_over:
            return _failed(name, contender, log.read_text()[-1500:])
        return _taken(name, contender, folder, began, options)


def _first_step(folder: Path, process: subprocess.Popen[bytes]) -> float:
    deadline = time.time() + START_S
    while time.time() < deadline and process.poll() is None:
        times = [rows[0][0] for rows in _rows(folder) if rows]
        if times:
            return min(times)
        time.sleep(POLL_S)
    return float("inf")


def _rows(folder: Path) -> list[list[tuple[float, int, float]]]:
    """By worker: time, samples and loss of each step; a line that is being written is left out."""
    found = []
    for path in sorted(folder.glob("[0-9]*.txt")):
        lines = path.read_text().splitlines(keepends=True)
        fields = [line.split() for line in lines if line.endswith("\n")]
        found.append([(float(f[0]), int(f[1]), float(f[2]) if f[2:] else 0.0) for f in fields])
    return found


def _taken(
    name: str, contender: str, folder: Path, began: float, options: argparse.Namespace
) -> Taken:
    since, until = began + options.warm_up, began + options.warm_up + options.seconds
    rows = _rows(folder)
    rates = [
        sum(samples for t, samples, _ in own if since < t <= until) / options.seconds
        for own in rows
    ]
    losses = [loss for own in rows for *_, loss in own if loss]
    return Taken(
        cell=name,
        contender=contender,
        samples_per_s=sum(rates),
        early_samples=sum(samples for own in rows for t, samples, _ in own if t <= since),
        early_s=options.warm_up,
        loss=losses[-1] if losses else 0.0,
        per_worker=rates,
        predicted_per_s=_predicted(folder, CELLS[name].batch),
    )


def _predicted(folder: Path, batch: int) -> float | None:
    """The last word of the job on how fast it will be: by its plan, alone, or apart."""
    found = None
    for path in folder.glob("run/**/coordinator*.jsonl"):
        for line in path.read_text().splitlines(keepends=True):
            event = json.loads(line) if line.endswith("\n") else {}
            what, numbers = event.get("what"), event.get("numbers", {})
            if what == "plan" and numbers.get("predicted_s"):
                found = batch / numbers["predicted_s"]
            elif what == "exclude" and numbers.get("without_s"):
                found = batch / numbers["without_s"]
            elif numbers.get("apart"):
                found = numbers["apart"]
    return found


def _failed(name: str, contender: str, said: str) -> Taken:
    print(f"{name} {contender}: {said}", flush=True)
    return Taken(
        cell=name,
        contender=contender,
        samples_per_s=0.0,
        early_samples=0,
        early_s=0.0,
        loss=0.0,
        per_worker=[],
        error=said,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """The launcher ends its workers; whatever does not end is killed."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(15)


def _keep_logs(folder: Path, to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    for path in [folder / "log", *(folder / "run").glob("events/*"), *folder.glob("run/*.jsonl")]:
        if path.is_file():
            shutil.copy(path, to / path.name)


def kept() -> list[Taken]:
    """What was measured so far."""
    if not KEPT.exists():
        return []
    return [msgspec.json.decode(line, type=Taken) for line in KEPT.read_text().splitlines()]


def order_of(name: str, repeat: int, contenders: list[str]) -> list[str]:
    """Random, and the reverse of it every second time."""
    chosen = random.Random(f"{name} {repeat // 2}").sample(contenders, len(contenders))
    return chosen[::-1] if repeat % 2 else chosen


def measure_cells(options: argparse.Namespace) -> Iterator[str]:
    """Measures what is missing; yields the names of the cells as they are done."""
    for name in options.cells:
        for repeat in range(options.repeats):
            for contender in order_of(name, repeat, options.contenders):
                mine = [one for one in kept() if (one.cell, one.contender) == (name, contender)]
                if len(mine) > repeat or time.time() > options.deadline:
                    continue
                taken = measure(name, contender, options)
                with KEPT.open("a") as file:
                    file.write(msgspec.json.encode(taken).decode() + "\n")
                shown = " + ".join(f"{rate:.0f}" for rate in taken.per_worker)
                print(f"{name} {contender}: {taken.samples_per_s:.1f}/s = {shown}", flush=True)
        yield name


def table() -> str:
    """One row for each cell and contender."""
    lines = [
        "| cell | contender | samples/s | × alone | × sum | start-up regret (s) | predicted | loss |",
        "|---|---|---|---|---|---|---|---|",
    ]
    taken = [one for one in kept() if not one.error]
    for name in CELLS:
        rates: dict[str, list[Taken]] = {}
        for one in taken:
            if one.cell == name:
                rates.setdefault(one.contender, []).append(one)
        middle = {who: median(one.samples_per_s for one in own) for who, own in rates.items()}
        for who in CONTENDERS:
            if who not in rates:
                continue
            own = sorted(one.samples_per_s for one in rates[who])
            spread = f" ({own[0]:.0f} to {own[-1]:.0f})" if len(own) > 1 else ""
            ratios = [
                f"{middle[who] / middle[base]:.3f}" if middle.get(base) else ""
                for base in ("alone", "sum")
            ]
            regret = ""
            if middle.get("alone"):
                lost = [one.early_s - one.early_samples / middle["alone"] for one in rates[who]]
                regret = f"{median(lost):.1f}"
            loss = _shown(rates[who][-1].loss)
            said = [one.predicted_per_s for one in rates[who] if one.predicted_per_s]
            predicted = f"{median(said) / middle[who] - 1:+.0%}" if said and middle[who] else ""
            cells = [name, who, f"{middle[who]:.0f}{spread}", *ratios, regret, predicted, loss]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.3f}"


def main() -> None:
    """Measures, and prints and keeps the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", nargs="+", default=[c for c in CELLS if "tiny" not in c])
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warm-up", type=float, default=8.0, help="seconds after the first step")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--within", type=float, default=1e9, help="seconds; then begin nothing more"
    )
    parser.add_argument("--logs", type=Path, help="a folder for the runs' event logs")
    options = parser.parse_args()
    options.deadline = time.time() + options.within
    unknown = [name for name in options.cells if name not in CELLS]
    if unknown:
        sys.exit(f"no such cell: {unknown[0]}; there are {', '.join(CELLS)}")
    RESULTS.mkdir(exist_ok=True)
    with divided_gpu() as is_divided:
        if torch.cuda.is_available() and not is_divided:
            sys.exit("the GPU cannot be cut into parts: nvidia-cuda-mps-control is not there")
        for _ in measure_cells(options):
            pass
    facts = ", ".join(f"{key} {value}" for key, value in machine_facts().items())
    text = f"# Real models\n\n{table()}\n\nMachine: {facts}.\n"
    (RESULTS / "real_models.md").write_text(text)
    (RESULTS / "real_models.json").write_text(json.dumps(msgspec.to_builtins(kept())))
    print(text)


if __name__ == "__main__":
    main()
