# SPDX-License-Identifier: Apache-2.0
"""Measures what a step of the user's own script costs, by running it for some steps."""

from __future__ import annotations

import os
import resource
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gangline.engines.job import count_cores, thread_environment
from gangline.engines.local import LocalEngine, WorkerCommand
from gangline.eventlog import read_run
from gangline.profiling.computing import ComputeCost, fit_cost
from gangline.protocol.launch import Launch
from gangline.spec.errors import LaunchError, UsageError
from gangline.spec.event import Decision, StepDone

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.launch.program import Program

STEPS = 40
"""Ten of each of four sizes."""
WARM_UP = 8
"""The first steps pay for what the others find ready."""
_POLL_S = 0.2


class ScriptCost(NamedTuple):
    """What was measured of a script."""

    compute: ComputeCost
    global_batch: int
    gradient_bytes: int
    peak_bytes: int
    """The most memory that its process used."""

    @property
    def workload(self) -> str:
        """As `gangline plan --workload` takes it."""
        return f"global_batch={self.global_batch},gradient_bytes={self.gradient_bytes}"


def measure_script(program: Program, *, num_workers: int, say: Callable[[str], None]) -> ScriptCost:
    """Runs a script until it has made `STEPS` steps, with the threads of one of so many workers."""
    with tempfile.TemporaryDirectory(prefix="gangline-probe-") as folder:
        run_dir = Path(folder)
        launch = Launch(
            run="probe",
            run_dir=folder,
            worker=0,
            workers=1,
            token_file=str(run_dir / "token"),
            probe_steps=STEPS,
        )
        speeds = (1.0,) * num_workers
        threads = thread_environment(os.environ, speeds=speeds, cores=count_cores())
        command = WorkerCommand(
            worker=0,
            arguments=program.command,
            environment={**os.environ, **threads, **launch.to_environment()},
            log=run_dir / "output.log",
        )
        say(f"computing: {STEPS} steps of {program.name}")
        _run(command)
        return _read(run_dir, program.name)


def _run(command: WorkerCommand) -> None:
    with LocalEngine([command]) as engine:
        engine.start()
        while not engine.wait(_POLL_S):
            pass
        (result,) = engine.results
    if result.has_failed:
        shown = result.traceback or command.log.read_text(errors="replace")[-2000:]
        raise LaunchError(f"the script could not be measured, {result.reason}:\n{shown}")


def _read(run_dir: Path, name: str) -> ScriptCost:
    has_logs = any((run_dir / "events").glob("*.jsonl"))
    events = list(read_run(run_dir, notes=[])) if has_logs else []
    told = [e.numbers for e in events if isinstance(e, Decision) and e.what == "probe"]
    times: dict[int, list[float]] = {}
    for event in events:
        if isinstance(event, StepDone) and event.step >= WARM_UP:
            times.setdefault(event.samples, []).append(event.compute_s)
    if not told or len(times) < 2:
        count = sum(map(len, times.values()))
        raise UsageError(
            f"{name} made {count} steps that could be measured, and batches of two sizes are "
            f"needed, after {WARM_UP} steps: let it call gangline.prepare(), with a global batch of "
            "two or more, and train for longer"
        )
    return ScriptCost(
        compute=fit_cost(times),
        global_batch=int(told[0]["global_batch"] or 0),
        gradient_bytes=int(told[0]["gradient_bytes"] or 0),
        peak_bytes=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
    )
