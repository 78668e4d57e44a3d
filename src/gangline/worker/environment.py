# SPDX-License-Identifier: Apache-2.0
"""Finds out how this process was launched, and so who it is. Nothing else reads the environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gangline.protocol.launch import Launch
from gangline.protocol.pods import find_pod
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True)
class TorchRun:
    """This process's place in a job that `torchrun` started."""

    run: str
    worker: int
    workers: int
    host: str
    port: int
    agent_serves_store: bool
    attempt: str


def find_launch(environment: Mapping[str, str]) -> Launch | TorchRun | None:
    """What the environment says: `gangline run`, a pod, `torchrun`, or (None) a plain script."""
    launch = Launch.from_environment(environment)
    if launch is None:
        launch = find_pod(environment)
    if launch is not None:
        return launch
    if not all(name in environment for name in _TORCHRUN_VARIABLES):
        return None
    try:
        worker, workers = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        port = int(environment["MASTER_PORT"])
    except ValueError as error:
        raise UsageError(
            f"RANK, WORLD_SIZE and MASTER_PORT must be whole numbers ({error}); start the script "
            "with `torchrun --nproc-per-node N script.py` or `gangline run script.py`"
        ) from error
    if not 0 <= worker < workers:
        raise UsageError(
            f"RANK is {worker} and WORLD_SIZE is {workers}: a rank is from 0 to WORLD_SIZE - 1; "
            "start the script with `torchrun --nproc-per-node N script.py` or `gangline run script.py`"
        )
    return TorchRun(
        run=environment.get("TORCHELASTIC_RUN_ID", "torchrun"),
        worker=worker,
        workers=workers,
        host=environment["MASTER_ADDR"],
        port=port,
        agent_serves_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )
