# SPDX-License-Identifier: Apache-2.0
"""Finds out how this process was launched, and so who it is. Nothing else reads the environment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

from gangline.spec.errors import UsageError
from gangline.spec.launch import Launch

if TYPE_CHECKING:
    from collections.abc import Mapping

_TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True)
class Place:
    """This process's place in the job."""

    launcher: str
    """`gangline`, `torchrun` or `none`."""
    run: str
    worker: int
    workers: int
    store: Store | None
    """Where the workers find each other; None for a job of one."""
    run_dir: str | None = None
    speed: float = 1.0
    shares: tuple[float, ...] | None = None
    transport: str | None = None


def find_place(environment: Mapping[str, str], *, timeout_s: float) -> Place:
    """The place that the environment describes: `gangline run`, `torchrun`, or a plain script."""
    launch = Launch.from_environment(environment)
    if launch is not None:
        return _place_of_launch(launch, timeout_s=timeout_s)
    if all(name in environment for name in _TORCHRUN_VARIABLES):
        return _place_of_torchrun(environment, timeout_s=timeout_s)
    return Place(launcher="none", run="local", worker=0, workers=1, store=None)


def _place_of_launch(launch: Launch, *, timeout_s: float) -> Place:
    store: Store | None = None
    if launch.workers > 1:
        store = FileStore(launch.rendezvous, launch.workers)
        store.set_timeout(_seconds(timeout_s))
    return Place(
        launcher="gangline",
        run=launch.run,
        worker=launch.worker,
        workers=launch.workers,
        store=store,
        run_dir=launch.run_dir,
        speed=launch.speed,
        shares=launch.shares,
        transport=launch.transport,
    )


def _place_of_torchrun(environment: Mapping[str, str], *, timeout_s: float) -> Place:
    try:
        worker, workers = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        port = int(environment["MASTER_PORT"])
    except ValueError as error:
        raise UsageError(
            f"RANK, WORLD_SIZE and MASTER_PORT must be whole numbers ({error}); start the script "
            "with `torchrun --nproc-per-node N script.py` or `gangline run script.py`"
        ) from error
    store: Store | None = None
    if workers > 1:
        agent_hosts = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(
            f"gangline/{attempt}",
            TCPStore(
                environment["MASTER_ADDR"],
                port,
                is_master=worker == 0 and not agent_hosts,
                timeout=_seconds(timeout_s),
                wait_for_workers=False,
            ),
        )
    run = environment.get("TORCHELASTIC_RUN_ID", "torchrun")
    return Place(launcher="torchrun", run=run, worker=worker, workers=workers, store=store)


def _seconds(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)
