# SPDX-License-Identifier: Apache-2.0
"""Gives a job its coordinator: a process beside the workers."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gangline.engines.local import LocalEngine, WorkerCommand

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gangline.engines.job import Job


_GRACE_S = 0.2
"""It holds nothing that a killed coordinator would lose."""


def write_token(path: Path) -> str:
    """Makes a token for a run, in a file that only its owner can read."""
    token = secrets.token_urlsafe(32)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    return token


@contextmanager
def coordinator_process(job: Job, environment: Mapping[str, str]) -> Iterator[None]:
    """Runs the job's coordinator as a process beside the workers."""
    write_token(job.token_file)
    command = WorkerCommand(
        worker=0,
        arguments=(
            *("-m", "gangline.cli.main", "up"),
            *("--run-dir", str(job.run_dir), "--name", job.run),
            *("--workers", str(len(job.speeds)), "--token-file", str(job.token_file)),
        ),
        environment=environment,
        log=job.run_dir / "coordinator.log",
    )
    with LocalEngine([command], grace_s=_GRACE_S) as engine:
        engine.start()
        yield
