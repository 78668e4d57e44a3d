# SPDX-License-Identifier: Apache-2.0
"""A worker that a launcher of parallel programs started: ranks are given, and the first one serves.

The coordinator is in the first rank's process. Others may be lost, as far as the launcher lets the rest
live; when the first is lost, the job ends.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from gangline.files.addresses import own_addresses
from gangline.spec.errors import LaunchError
from gangline.worker.place import Place
from gangline.worker.started.rendezvous import FileRendezvous, Meeting, agree
from gangline.worker.started.serving import Served, serve_here

if TYPE_CHECKING:
    from gangline.worker.started.ranks import Ranks

Share: TypeAlias = Callable[[bytes], bytes]
"""Called by all ranks, gives each of them what the first one gave."""
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class ParallelWorker:
    """This process's rank, and what its job is known by."""

    launcher: str
    ranks: Ranks
    key: str
    """What all processes of the job know it by, and no others; empty: there is no such thing."""
    is_here: bool
    """Whether all processes of the job are on this machine."""
    find_share: Callable[[], Share | None] = lambda: None
    """What gives to all ranks what the first one says; None: there is no such thing."""

    def place(self, *, timeout_s: float) -> Place:
        """Serves, or finds, the coordinator."""
        rank, size = self.ranks.rank, self.ranks.size
        run = f"{self.launcher}-{self.key}" if self.key else self.launcher
        if size == 1:
            return Place(launcher=self.launcher, run=run)
        served: list[Served] = []

        def serve() -> Meeting:
            host = _LOOPBACK if self.is_here else next(iter(own_addresses()), _LOOPBACK)
            served.append(serve_here(run=run, workers=size, host=host))
            return Meeting(url=served[0].url, token=served[0].token)

        meeting = self._meet(serve, timeout_s=timeout_s)
        return Place(
            launcher=self.launcher,
            is_elastic=True,
            run=run,
            worker=rank,
            workers=size,
            find_coordinator=lambda: meeting.url,
            token=meeting.token,
            own_coordinator=served[0].server if served else None,
        )

    def _meet(self, serve: Callable[[], Meeting], *, timeout_s: float) -> Meeting:
        is_first = self.ranks.rank == 0
        share = self.find_share()
        if share is not None:
            said = share(msgspec.json.encode(serve()) if is_first else b"")
            return msgspec.json.decode(said, type=Meeting)
        if not self.key:
            raise LaunchError(
                f"{self.launcher} started workers on several machines, and says nothing by which they "
                "could find each other: install mpi4py, or start them by `gangline run --on mpi`"
            )
        rendezvous = FileRendezvous(self.key, is_here=self.is_here)
        if is_first:
            atexit.register(rendezvous.forget)
        return agree(rendezvous, is_first=is_first, serve=serve, timeout_s=timeout_s)
