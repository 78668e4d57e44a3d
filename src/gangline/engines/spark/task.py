# SPDX-License-Identifier: Apache-2.0
"""What a slot is: a long task of Spark that runs an agent of the launcher, and ends with it.

The agent is a process of its own, tied to the task's: however the task ends (Spark kills it, its
executor is lost, the driver is gone), the kernel ends the agent, and with it the worker.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.engines.local import child_command
from gangline.engines.spark.training.work import (
    FOLDER_VARIABLE,
    ROWS_FILE,
    STATE_FILE,
    WORK_FILE,
    RowsPlace,
)
from gangline.spec.enclosure import OPEN
from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gangline.engines.spark.rows.index import RowIndex

PIECE_BYTES = 4 << 20
_AGENT = ("-m", "gangline.engines.agent", "--call", "--insist", "--name")


@dataclass(frozen=True, kw_only=True)
class Handed:
    """What each task is given, by a broadcast: Spark shows nothing of it on its pages."""

    invitation: bytes
    """The line that tells an agent where the launcher is, and the secret that lets it in."""
    work: bytes | None = None
    """What `fit` asks of its workers; None: they run a script."""
    index: RowIndex | None = None
    folder: str | None = None
    """Where the rows are; None: Spark has brought them to each executor."""


def hold_slot(handed: Handed, slot: int) -> Iterator[bytes]:
    """Runs an agent until the launcher has no more use for it; what its worker leaves, in pieces.

    An agent that fails fails the task, and Spark starts another one.
    """
    with tempfile.TemporaryDirectory(prefix="gangline-slot-") as name:
        folder = Path(name)
        _furnish(folder, handed)
        code = _run_agent(handed.invitation, f"slot-{slot}", environment=_environment(folder))
        if code != 0:
            raise LaunchError(
                f"the agent on {socket.gethostname()} ended with exit code {code}; its last words are "
                "in this executor's stderr"
            )
        yield from _pieces(folder / STATE_FILE)
        _clear(handed)


def _pieces(path: Path) -> Iterator[bytes]:
    if path.is_file():
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece


def _clear(handed: Handed) -> None:
    """Removes this executor's copy of the rows: Spark would keep it until the application ends."""
    if handed.index is not None and handed.folder is None:
        for file in handed.index.files:
            (Path(brought_to()) / file).unlink(missing_ok=True)


def _furnish(folder: Path, handed: Handed) -> None:
    """Puts what the worker needs into the task's private folder."""
    if handed.work is None or handed.index is None:
        return
    (folder / WORK_FILE).write_bytes(handed.work)
    rows = RowsPlace(index=handed.index, folder=handed.folder or brought_to())
    (folder / ROWS_FILE).write_bytes(msgspec.json.encode(rows))


def brought_to() -> str:
    """Where Spark puts the files that the driver hands out; it names that from an executor's folder."""
    from pyspark import SparkFiles

    return str(Path(SparkFiles.getRootDirectory()).resolve())


def _environment(folder: Path) -> dict[str, str]:
    from pyspark import TaskContext

    context = TaskContext.get()
    resources = {} if context is None else context.resources()
    return {
        **os.environ,
        # As this process finds modules: what Spark has brought is in its path, and in no variable.
        "PYTHONPATH": os.pathsep.join(one for one in sys.path if one),
        FOLDER_VARIABLE: str(folder),
        **devices(resources),
    }


def devices(resources: Mapping[str, Any]) -> dict[str, str]:
    """The GPUs that Spark has given to a task, as CUDA takes them; nothing where it gives none."""
    gpus = resources.get("gpu")
    return {} if gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(gpus.addresses)}


def _run_agent(invitation: bytes, name: str, *, environment: dict[str, str]) -> int:
    with subprocess.Popen(
        [*child_command(OPEN), sys.executable, *_AGENT, name],
        stdin=subprocess.PIPE,
        stdout=sys.stderr.fileno(),
        env=environment,
        start_new_session=True,
    ) as agent:
        assert agent.stdin is not None
        try:
            agent.stdin.write(invitation)
            agent.stdin.close()
        except BrokenPipeError:
            pass  # it has ended already, and its code says why
        return agent.wait()
