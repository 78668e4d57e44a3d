# SPDX-License-Identifier: Apache-2.0
"""One run of `parameter_server.py`: its command, its cores, and what it showed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gangline.eventlog import read_run
from gangline.observe import summarize
from parameter_server_cells import Aim, Cell, Scenario, Taken, scenario_of
from parameter_server_train import DDP, Judged

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

SCRIPT = Path(__file__).with_name("parameter_server_train.py")
WARM = Path(__file__).with_name("warm_start.py")
STARTED_S = 60.0
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that follow one another, on cores of their own."""

    cores: tuple[int, ...]
    warm: Path | None = None
    """The socket of a process that has imported torch already."""

    @property
    def pinned(self) -> list[str]:
        return ["taskset", "-c", ",".join(map(str, self.cores))]


@contextlib.contextmanager
def streams_of(count: int) -> Iterator[list[Stream]]:
    """So many streams, which share the cores out. One alone has all, and its workers start cold."""
    cores = sorted(os.sched_getaffinity(0))
    if count == 1:
        yield [Stream(cores=tuple(cores))]
        return
    each = len(cores) // count
    with (
        tempfile.TemporaryDirectory(prefix="gangline-warm-") as folder,
        contextlib.ExitStack() as all_,
    ):
        streams = [
            Stream(cores=tuple(cores[n * each :][:each]), warm=Path(folder) / f"{n}")
            for n in range(count)
        ]
        for stream in streams:
            all_.enter_context(warm_process(stream))
        yield streams


@contextlib.contextmanager
def warm_process(stream: Stream) -> Iterator[None]:
    """A process that forks the workers of a stream."""
    command = [*stream.pinned, sys.executable, str(WARM), "--serve", str(stream.warm)]
    process = subprocess.Popen(command, env={**os.environ, **ONE_THREAD})
    try:
        deadline_s = time.monotonic() + STARTED_S
        while not stream.warm.exists():  # it appears when all is imported
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError("the process that forks workers did not start")
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def cluster_file(scenario: Scenario) -> str:
    """One node for each worker; they pace themselves, so that DDP is as slow."""
    lines = []
    for number in range(len(scenario.speeds)):
        lines += ["[[nodes]]", f'name = "n{number}"']
        if scenario.bytes_per_s is not None:
            lines.append(f"bytes_per_s = {scenario.bytes_per_s:.0f}")
    return "\n".join(lines) + "\n"


def command_of(
    cell: Cell, aim: Aim, folder: Path, stream: Stream, *, data: Path, use: float
) -> list[str]:
    """The command that a user would give; workers use this part of the cores."""
    scenario = scenario_of(cell)
    (folder / "cluster.toml").write_text(cluster_file(scenario))
    scale = min(1.0, use * len(stream.cores) / sum(scenario.speeds))
    speeds = [scale * speed for speed in scenario.speeds]
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
    # Memory is compared as a worker has it that was started in the usual way.
    is_warm = stream.warm is not None and cell.model != "wide"
    script = [str(WARM), str(stream.warm)] if is_warm else [str(SCRIPT)]
    launch = [sys.executable, "-m", "gangline.cli.main", "run", *flags]
    return [*stream.pinned, *launch, *script, *given]


def measure(cell: Cell, aim: Aim, stream: Stream, options: argparse.Namespace) -> Taken:
    """One run, from its start to its end."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="gangline-bench-") as text:
        folder = Path(text)
        command = command_of(cell, aim, folder, stream, data=options.data, use=options.use)
        said = run(command, folder, options.timeout)
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
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **ONE_THREAD},
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
