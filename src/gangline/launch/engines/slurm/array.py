# SPDX-License-Identifier: Apache-2.0
"""Job arrays: the first element that gets nodes founds the run, and the others bring theirs to it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from gangline.engines.slurm.commands import ask
from gangline.engines.supervision import stop_signals
from gangline.files.plainfile import read_plain
from gangline.launch.engines.slurm.slots import start_agents
from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from pathlib import Path

    from gangline.engines.slurm.allocation import Allocation

_FOUNDER = "founder"
_POLL_S = 0.2
_START_S = 300.0
"""How long the founder may take until others can come to it."""


def is_founder(allocation: Allocation, run_dir: Path) -> bool:
    """Whether this element founds the run: the first to ask does, and does so again when requeued."""
    path = run_dir / _FOUNDER
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return read_plain(path).decode().strip() == allocation.array_task
    except OSError as error:
        raise LaunchError(f"cannot write {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(allocation.array_task)
    return True


def bring_nodes(allocation: Allocation, run_dir: Path) -> str:
    """Starts agents that call the founder's launcher, until the run is over; says how that was."""
    invitation = _await_invitation(run_dir)
    if invitation is None:
        return f"the run in {run_dir} is over: this element of the array has nothing to do"
    log = run_dir / f"srun-{allocation.job}.log"
    process = start_agents(allocation, invitation, log=log)
    is_told = False
    with stop_signals() as request:
        try:
            while (end := process.problem()) is None and not request.is_urgent:
                if request.number is not None and not is_told:
                    is_told = True  # the agents have their workers leave, and end then
                    ask("scancel", "--signal=TERM", allocation.job)
                time.sleep(_POLL_S)
        finally:
            process.close()
    return f"this element of the array took part in the run in {run_dir}: {end}"


def _await_invitation(run_dir: Path) -> bytes | None:
    """What the founder has written; None: the run has begun and is over."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        try:
            return read_plain(run_dir / "invitation")
        except FileNotFoundError:
            if (run_dir / "config.json").exists():  # written after the invitation
                return None
        except OSError as error:
            raise LaunchError(f"cannot read the invitation: {error.strerror}") from error
        time.sleep(_POLL_S)
    raise LaunchError(
        f"the element of the array that founds the run has not begun it in {run_dir} for "
        f"{_START_S:.0f} s: see its output"
    )
