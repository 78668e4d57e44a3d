# SPDX-License-Identifier: Apache-2.0
"""Groups that some workers make beside the job's own, and that end together when somebody is lost."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gangline.collectives import GroupKey
from gangline.spec.errors import ExchangeError
from gangline.worker.job import job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.collectives import Group
    from gangline.spec.exchange.address import WireAddress
    from gangline.worker.session import Session

IDLE_S = 86400.0
"""A worker may compute for long; who does not answer any more is found by the coordinator."""
_WATCH_S = 0.05


class GroupsBeside:
    """Makes groups under one name, and ends them."""

    def __init__(self, session: Session, *, name: str) -> None:
        assert session.door is not None
        self.door = session.door
        self._run = session.place.run
        self._name = name
        self._groups: dict[GroupKey, Group | None] = {}
        self._is_closed = False
        self._lock = threading.Lock()

    def connect(self, level: str, *, rank: int, addresses: Sequence[WireAddress]) -> Group:
        """The group of this level, whose members are at these addresses."""
        key = GroupKey(run=self._run, view=0, attempt=0, level=f"{self._name}/{level}")
        with self._lock:
            if self._is_closed:
                raise ExchangeError(f"{self._name} is over")
            self._groups[key] = None
        group = self.door.connect_beside(key, rank=rank, addresses=addresses, idle_s=IDLE_S)
        with self._lock:
            self._groups[key] = group
            if self._is_closed:
                group.abort()
        return group

    def close(self) -> None:
        """Breaks off all that is going on, from any thread."""
        with self._lock:
            self._is_closed = True
            for key, group in self._groups.items():
                if group is None:
                    self.door.cancel(key)
                else:
                    group.abort()

    def free(self) -> None:
        """Gives back what the groups hold, when nobody uses them any more."""
        self.close()
        for group in self._groups.values():
            if group is not None:
                group.close()


class LossWatch:
    """Breaks off what this worker waits for, as soon as the coordinator says that somebody is lost."""

    def __init__(self, session: Session, groups: GroupsBeside) -> None:
        self._session = session
        self._groups = groups
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gangline-losses", daemon=True)

    def __enter__(self) -> LossWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def is_lost(self) -> bool:
        """Whether the group in which all have met is no more."""
        client, training = self._session.client, job.training
        if client is None:
            return False
        if training is None:
            return client.gathering > self._session.gathering
        return client.newest_recovery > client.entered or training.gear.membership.is_broken

    def _run(self) -> None:
        while not self._is_over.wait(_WATCH_S):
            if self.is_lost():
                self._groups.close()
