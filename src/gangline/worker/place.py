# SPDX-License-Identifier: Apache-2.0
"""This process's place in a job: which worker it is, and where the coordinator is found."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from torch._C._distributed_c10d import PrefixStore, TCPStore

from gangline.files.tokens import make_token, read_token
from gangline.spec.cluster import Cluster
from gangline.spec.config import RunConfig
from gangline.worker.environment import TorchRun
from gangline.worker.line.refinding import coordinator_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.coordinator.server import CoordinatorServer
    from gangline.protocol.launch import Launch
    from gangline.spec.faults import Fault

_STORE_KEY = "coordinator"
_PLAIN = RunConfig()


@dataclass(frozen=True, kw_only=True)
class Place:
    """Who this worker is, and how it gets in touch."""

    launcher: str
    """`gangline`, `torchrun` or `none`."""
    run: str
    worker: int = 0
    workers: int = 1
    find_coordinator: Callable[[], str] | None = None
    """The coordinator's address, looked up anew whenever it is needed; None for a job of one."""
    token: str = ""
    run_dir: str | None = None
    speed: float = 1.0
    config: RunConfig = _PLAIN
    """What was asked of the run, where the script does not say otherwise."""
    faults: tuple[Fault, ...] = ()
    replaces: int = -1
    """The worker in whose place this one was started; -1: nobody's."""
    machine: str = ""
    """Whose launcher sends this worker's event log; empty: nobody does."""
    probe_steps: int = 0
    """Above 0, this script is measured, and ends after so many steps."""
    own_coordinator: CoordinatorServer | None = field(default=None, repr=False)
    """Under torchrun the first worker serves the coordinator itself."""
    store: PrefixStore | None = field(default=None, repr=False)
    """Where it tells the others the address. It may serve this, too: it ends with this object."""


def place_of(launch: Launch | TorchRun | None, *, timeout_s: float) -> Place:
    """The place that a launcher gave this process."""
    if launch is None:
        return Place(launcher="none", run="local")
    if isinstance(launch, TorchRun):
        return _place_of_torchrun(launch, timeout_s=timeout_s)
    if launch.probe_steps:
        return Place(
            launcher="gangline",
            run=launch.run,
            run_dir=launch.run_dir,
            probe_steps=launch.probe_steps,
        )
    return Place(
        launcher="gangline",
        run=launch.run,
        worker=launch.worker,
        workers=launch.workers,
        find_coordinator=lambda: coordinator_of(launch),
        token=read_token(Path(launch.token_file)),
        run_dir=launch.run_dir,
        speed=launch.speed,
        config=launch.config,
        faults=launch.faults,
        replaces=launch.replaces,
        machine=launch.machine,
    )


def _place_of_torchrun(launch: TorchRun, *, timeout_s: float) -> Place:
    if launch.workers == 1:
        return Place(launcher="torchrun", run=launch.run)
    store = PrefixStore(
        f"gangline/{launch.attempt}",
        TCPStore(
            launch.host,
            launch.port,
            is_master=launch.worker == 0 and not launch.agent_serves_store,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        ),
    )
    server = None
    if launch.worker == 0:
        # Only here, so that the other workers do not carry a web server in their memory.
        from gangline.coordinator.server import Keys, Post, assemble

        cluster = Cluster.of_speeds((1.0,), workers=launch.workers)
        config = RunConfig(run=launch.run, cluster=cluster)
        token = make_token()
        post = Post(config=config, host=_host_to_serve(launch.host))
        server = assemble(post, keys=Keys.of_worker(token))
        server.start()
        store.set(_STORE_KEY, f"{server.url} {token}")
    url, token = store.get(_STORE_KEY).decode().split()
    return Place(
        launcher="torchrun",
        run=launch.run,
        worker=launch.worker,
        workers=launch.workers,
        find_coordinator=lambda: url,
        token=token,
        own_coordinator=server,
        store=store if launch.worker == 0 else None,
    )


def _host_to_serve(master: str) -> str:
    return "127.0.0.1" if master == "localhost" else master
