# SPDX-License-Identifier: Apache-2.0
"""What a launcher tells each worker: one JSON document in one environment variable."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.spec.config import RunConfig, put
from gangline.spec.errors import GanglineError, UsageError
from gangline.spec.faults import Fault
from gangline.spec.sync import Sync

if TYPE_CHECKING:
    from collections.abc import Mapping

LAUNCH_VARIABLE = "GANGLINE_LAUNCH"
_SHORT = {
    "shares": "batch.shares",
    "allocation": "batch.allocation",
    "transport": "exchange.transport",
    "structure": "exchange.structure",
    "sync": "exchange.sync",
    "wire": "wire",
    "resume": "checkpoint.resume",
    "non_finite": "survival.non_finite",
    "max_away_s": "survival.max_away_s",
}
"""What people who start workers themselves may say in short, and where it is in a configuration."""


class Launch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One worker's part in a job that `gangline run` or `gangline join` started."""

    run: str
    """The name of the run."""
    run_dir: str
    """Where the worker writes its event log."""
    worker: int
    """This worker's id; -1 lets the coordinator give it one."""
    workers: int
    """How many workers found the job; 0 where whoever starts this one does not know."""
    token_file: str
    """The file that holds the run's token."""
    coordinator: str | None = None
    """The coordinator's address, `ws://HOST:PORT`; None where it announces itself in the run folder."""
    announced_in: str | None = None
    """The folder in which the coordinator announces itself, where that is not the worker's own."""
    speed: float = 1.0
    """Below 1, the worker paces itself to this fraction of its own speed."""
    config: RunConfig = RunConfig()
    """What was asked of the run, as far as it concerns a worker."""
    faults: tuple[Fault, ...] = ()
    """What shall go wrong with this worker."""
    replaces: int = -1
    """The worker in whose place it is started; -1: nobody's."""
    machine: str = ""
    """What the launcher that sends this worker's event log is called; empty: nobody sends it."""
    probe_steps: int = 0
    """Above 0, the worker is a job of one that is measured: it ends after so many steps."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Launch | None:
        """The launch in `environment`, or None where nobody launched us."""
        text = environment.get(LAUNCH_VARIABLE)
        if text is None:
            return None
        try:
            return msgspec.convert(_in_full(msgspec.json.decode(text)), type=cls)
        except msgspec.DecodeError as error:
            raise UsageError(
                f"the environment variable {LAUNCH_VARIABLE} is not what `gangline run` writes "
                f"({error}); unset it, or start the script with `gangline run`"
            ) from error

    def to_environment(self) -> dict[str, str]:
        """The variable that `from_environment` reads."""
        return {LAUNCH_VARIABLE: msgspec.json.encode(self).decode()}


def _in_full(document: Any) -> Any:
    """The document with what it says in short where it belongs, in its configuration."""
    if not isinstance(document, dict):
        return document
    config = document.setdefault("config", {})
    for name, path in _SHORT.items():
        value = document.pop(name, None)
        if name == "sync" and isinstance(value, dict):
            value = str(msgspec.convert(value, type=Sync))
        if value is not None:
            put(config, path, value)
    return document


def is_of_run(pid: int, run: str, run_dir: Path) -> bool:
    """Whether a process was launched as a worker of this run: nobody else is touched."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    variables = dict(entry.decode(errors="replace").partition("=")[::2] for entry in entries)
    try:
        launch = Launch.from_environment(variables)
    except GanglineError:
        return False
    is_same = launch is not None and launch.run == run
    return is_same and launch is not None and Path(launch.run_dir).resolve() == run_dir
