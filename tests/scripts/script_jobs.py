# SPDX-License-Identifier: Apache-2.0
"""Runs a script of this folder in one of the ways in which people start it; what it has written.

The processes are forked from a server that has torch imported already, and find the environment that
the launcher would have given them. Shares change at every step.
"""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import time
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from forking import PROCESSES
from gangline.engines.job import Job
from gangline.spec.cluster import Cluster
from gangline.spec.config import EmulationConfig, ManagerConfig, RunConfig
from gangline.testing.coordination import coordinator_thread
from gangline.testing.shares import changing_shares

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from multiprocessing.process import BaseProcess

    from gangline.spec.faults import Fault

FOLDER = Path(__file__).parent
DEADLINE_S = 45.0
TOLERANCE = 1e-9
_PR_SET_PDEATHSIG = 1
LAUNCHER_VARIABLES = (
    "GANGLINE_LAUNCH",
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PLAIN",
)


def execute(script: str, variables: Mapping[str, str], output: str, seed: int | None) -> None:
    """The body of a process: becomes `python SCRIPT`, as some launcher would have started it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.dump_traceback_later(DEADLINE_S - 2)  # where it hangs, if it does
    for name in LAUNCHER_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(variables)
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # as in a script that somebody runs
    path = str(FOLDER / f"{script}.py")
    sys.argv = [path]
    sys.path.insert(0, str(FOLDER))
    try:
        with changing_shares(seed) if seed is not None else nullcontext():
            runpy.run_path(path, run_name="__main__")
    finally:
        from gangline.worker import api

        api.shutdown()
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def started(
    script: str, environments: Sequence[Mapping[str, str]], folder: Path, seed: int | None
) -> Iterator[list[BaseProcess]]:
    """One process per environment; whatever is left of them is killed and reaped at the end."""
    processes = [
        PROCESSES.Process(
            target=execute, args=(script, dict(one), str(folder / f"{number}.out"), seed)
        )
        for number, one in enumerate(environments)
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


def run_to_end(
    script: str,
    environments: Sequence[Mapping[str, str]],
    folder: Path,
    *,
    seed: int | None = None,
    killed: frozenset[int] = frozenset(),
) -> dict[str, Any]:
    """Runs the script in these processes; what the main one has written."""
    result = folder / "result.pt"
    with started(
        script, [{**e, "RESULT": str(result)} for e in environments], folder, seed
    ) as all_:
        deadline = time.monotonic() + DEADLINE_S
        for process in all_:
            process.join(max(0.0, deadline - time.monotonic()))
        codes = [process.exitcode for process in all_]
    expected = [-signal.SIGKILL if one in killed else 0 for one in range(len(codes))]
    outputs = [(folder / f"{number}.out") for number in range(len(codes))]
    texts = [path.read_text(errors="replace") if path.exists() else "" for path in outputs]
    assert codes == expected, f"exit codes {codes}\n" + "\n".join(texts)
    found: dict[str, Any] = torch.load(result)
    return found


@cache
def plain(script: str) -> dict[str, Any]:
    """What the original makes of it: one process, and no gangline."""
    with TemporaryDirectory() as folder:
        return run_to_end(script, [{"PLAIN": "1"}], Path(folder))


def alone(script: str, folder: Path) -> dict[str, Any]:
    """By `python script.py`: a job of one."""
    return run_to_end(script, [{}], folder)


def together(
    script: str, folder: Path, *, workers: int = 3, faults: Sequence[Fault] = (), seed: int = 0
) -> dict[str, Any]:
    """By `gangline run`."""
    job = Job(
        config=RunConfig(
            run="scripts",
            cluster=Cluster.of_speeds((1.0,) * workers),
            manager=ManagerConfig(everybody=True),
            emulation=EmulationConfig(faults=tuple(faults)),
        ),
        run_dir=folder,
        script=FOLDER / f"{script}.py",
    )
    with coordinator_thread(job):
        return run_to_end(
            script,
            [launch.to_environment() for launch in job.launches()],
            folder,
            seed=seed,
            killed=frozenset(fault.worker for fault in faults if fault.kind == "kill"),
        )


def under_torchrun(script: str, folder: Path, *, workers: int = 2, seed: int = 0) -> dict[str, Any]:
    """As `torchrun` starts it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(workers)}
    environments = [{**common, "RANK": str(rank)} for rank in range(workers)]
    return run_to_end(script, environments, folder, seed=seed)


def differences(found: Any, expected: Any, path: str = "") -> list[str]:
    """Where two results differ by more than rounding, in words."""
    if isinstance(expected, dict):
        if found.keys() != expected.keys():
            return [f"{path}: keys {sorted(map(str, found))}, not {sorted(map(str, expected))}"]
        return [
            d for key in expected for d in differences(found[key], expected[key], f"{path}/{key}")
        ]
    if isinstance(expected, list | tuple):
        if len(found) != len(expected):
            return [f"{path}: {len(found)} values, not {len(expected)}"]
        return [
            difference
            for number, (one, other) in enumerate(zip(found, expected, strict=True))
            for difference in differences(one, other, f"{path}/{number}")
        ]
    if isinstance(expected, torch.Tensor | float):
        one, other = torch.as_tensor(found).double(), torch.as_tensor(expected).double()
        error = (one - other).norm() / max(float(other.norm()), 1e-3)
        return [] if error <= TOLERANCE else [f"{path}: {float(error):.2g} off"]
    return [] if found == expected else [f"{path}: {found!r}, not {expected!r}"]
