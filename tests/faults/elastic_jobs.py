# SPDX-License-Identifier: Apache-2.0
"""Runs a job of real processes with a fault plan, and judges how it ended.

The processes are forked from a server that has torch imported already, so that a job of three costs
tenths of a second to start, and may lose as many of them as it likes.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from elastic_bodies import Setup, run_body
from networks import enter_namespace

from forking import PROCESSES
from gangline.coordinator.server.input_log import recorded_files
from gangline.engines.job import Job
from gangline.eventlog import read_run
from gangline.observe.ledger import Ledger, read_ledger
from gangline.simulation.recorded import replay
from gangline.spec.cluster import Cluster
from gangline.spec.config import FLAT, EmulationConfig, ExchangeConfig, ManagerConfig, RunConfig
from gangline.spec.event import AnyEvent, FaultFired, LogOpened, Regrouped
from gangline.spec.faults import Fault
from gangline.spec.sync import IN_STEP, Sync
from gangline.testing.coordination import coordinator_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gangline.spec.exchange.structure import Structure

DEADLINE_S = 45.0
TOLERANCE = 1e-9
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    exit_codes: list[int | None]
    """By worker; negative for the signal that killed it, None if it did not end in time."""
    results: dict[int, dict[str, Any]]
    """What the workers that ended well ended with."""
    outputs: dict[int, str]
    events: list[AnyEvent]
    ledger: Ledger
    folder: Path

    def fired(self) -> list[tuple[int, str, str]]:
        return sorted((e.worker, e.fault, e.where) for e in self.of_kind(FaultFired))

    def of_kind(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def steps_of(self, worker: int) -> set[int]:
        return {window.step for window in self.ledger.windows if worker in window.samples}


def _work(
    variables: dict[str, str],
    setup: Setup,
    folder: str,
    worker: int,
    namespace: str | None = None,
) -> None:
    if namespace is not None:
        enter_namespace(namespace)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # A shell that starts the tests in the background has this signal ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(f"{folder}/{worker}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(variables)
    # A data loader's processes are forked from their worker, as in a script that somebody runs.
    multiprocessing.set_start_method("fork", force=True)
    try:
        result = run_body(setup, is_alone=False)
        torch.save(result, f"{folder}/{worker}.pt")
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        raise
    finally:
        from gangline.worker import api

        api._end()  # as where a script ends


@contextmanager
def started(job: Job, setup: Setup) -> Iterator[list[Any]]:
    """The job's processes; whatever is left of them is killed and reaped at the end."""
    processes = [
        PROCESSES.Process(
            target=_work,
            args=(launch.to_environment(), setup, str(job.run_dir), launch.worker),
            name=f"worker {launch.worker}",
        )
        for launch in job.launches()
    ]
    try:
        for process in processes:
            process.start()
        yield processes
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
            process.close()


def kill(worker: int, step: int, where: str) -> Fault:
    return Fault(worker=worker, kind="kill", step=step, where=where)


def hang(worker: int, step: int, where: str, for_s: float) -> Fault:
    return Fault(worker=worker, kind="hang", step=step, where=where, for_s=for_s)


def run_with(
    folder: Path,
    setup: Setup,
    faults: Sequence[Fault],
    *,
    workers: int = 3,
    transport: str | None = None,
    structure: Structure | None = None,
    sync: Sync = IN_STEP,
    everybody: bool = True,
) -> Outcome:
    """Runs a job in which these faults happen, to its end.

    Its steps are so short that one worker would be faster alone: unless `everybody` takes part.
    """
    job = Job(
        config=RunConfig(
            run="faults",
            cluster=Cluster.of_speeds((1.0,) * workers),
            exchange=ExchangeConfig(
                transport=transport, structure=structure or FLAT, sync=str(sync)
            ),
            emulation=EmulationConfig(faults=tuple(faults)),
            manager=ManagerConfig(everybody=everybody),
        ),
        run_dir=folder,
        script=Path(__file__),
    )
    with coordinator_thread(job), started(job, setup) as processes:
        deadline = time.monotonic() + DEADLINE_S
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        exit_codes = [process.exitcode for process in processes]
    events = list(read_run(folder, notes=[]))
    return Outcome(
        exit_codes=exit_codes,
        results={
            worker: torch.load(path)
            for worker in range(workers)
            if (path := folder / f"{worker}.pt").exists()
        },
        outputs={worker: _read(folder / f"{worker}.out") for worker in range(workers)},
        events=events,
        ledger=read_ledger(events),
        folder=folder,
    )


def assert_replays(folder: Path) -> None:
    """What the coordinator was told gives the same once more, whatever happened."""
    files = recorded_files(folder)
    assert files, "nothing was recorded"
    found = replay((str(path), path.read_bytes()) for path in files)
    assert not found.differences, found.differences[0]
    assert not found.stumbles
    assert found.inputs["Said"] > 0


def judge(
    outcome: Outcome, setup: Setup, faults: Sequence[Fault], *, is_exact: bool = True
) -> None:
    """Asserts what must hold however a job was tormented: nothing lost, nobody else harmed."""
    killed = {fault.worker for fault in faults if fault.kind == "kill"}
    killed |= set() if setup.trap is None else {setup.trap[0]}
    expected = [-signal.SIGKILL if w in killed else 0 for w in range(len(outcome.exit_codes))]
    assert outcome.exit_codes == expected, _report(outcome)
    assert outcome.fired() == sorted((f.worker, f.kind, f.place) for f in faults)
    opened = [event.source for event in outcome.of_kind(LogOpened)]
    assert len(opened) == len(set(opened)), "a process was started again"
    first, *others = [result["state"] for result in outcome.results.values()]
    for other in others:
        assert first.keys() == other.keys()
        for name, value in first.items():
            assert torch.equal(value, other[name]), f"the members differ in {name}"
    assert_replays(outcome.folder)
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)
    assert len(outcome.ledger.windows) == setup.steps
    if is_exact:
        for name, value in faultless(key_of(setup))["state"].items():
            torch.testing.assert_close(
                first[name],
                value,
                rtol=TOLERANCE,
                atol=TOLERANCE,
                msg=lambda m, n=name: f"{n}: {m}",
            )


@cache
def faultless(key: tuple[Any, ...]) -> dict[str, Any]:
    """What one process in plain torch makes of the same global batches."""
    loop, samples, batch, epochs, accumulate, order = key
    setup = Setup(
        loop=loop,
        samples=samples,
        batch=batch,
        epochs=epochs,
        accumulate=accumulate,
        order=order,
    )
    return run_body(setup, is_alone=True)


def regroups(outcome: Outcome) -> list[Regrouped]:
    return outcome.of_kind(Regrouped)


def key_of(setup: Setup) -> tuple[Any, ...]:
    """What the result of a faultless run depends on."""
    return (
        setup.loop,
        setup.samples,
        setup.batch,
        setup.epochs,
        setup.accumulate,
        setup.order,
    )


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _report(outcome: Outcome) -> str:
    parts = [f"exit codes {outcome.exit_codes}, fired {outcome.fired()}"]
    parts += [f"--- worker {w} ---\n{text}" for w, text in outcome.outputs.items()]
    parts += [repr(event) for event in outcome.events[-12:]]
    return "\n".join(parts)
