# SPDX-License-Identifier: Apache-2.0
"""This process's place in a job: which worker it is, and where the coordinator is found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gangline.spec.config import RunConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._C._distributed_c10d import PrefixStore

    from gangline.coordinator.server import CoordinatorServer
    from gangline.spec.faults import Fault

_PLAIN = RunConfig()


@dataclass(frozen=True, kw_only=True)
class Place:
    """Who this worker is, and how it gets in touch."""

    launcher: str
    """Who started the process: `gangline`, `torchrun`, …; `none` for a plain script."""
    run: str
    is_elastic: bool = False
    """Whether workers may come and go while the launcher looks on."""
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
    """Where the launcher serves none, the first worker serves the coordinator itself."""
    store: PrefixStore | None = field(default=None, repr=False)
    """Where it tells the others the address. It may serve this, too: it ends with this object."""
