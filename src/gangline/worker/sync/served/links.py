# SPDX-License-Identifier: Apache-2.0
"""The connections between a worker and the parameter servers: groups of two, beside the team's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.collectives import GroupKey
from gangline.paramserver.service.link import pair_of

if TYPE_CHECKING:
    from gangline.collectives import Group
    from gangline.spec.serving import Host
    from gangline.worker.session import Session

IDLE_S = 86400.0
"""A server may hear nothing for long: who does not answer is found by the coordinator."""


class ServerLinks:
    """Makes groups of two with a server or a client, by way of this worker's door."""

    def __init__(self, session: Session) -> None:
        assert session.door is not None
        self._door = session.door
        self._run = session.place.run

    def connect(self, level: str, *, rank: int, peer: Host, serving_number: int) -> Group:
        """The group of this name with a peer."""
        return self._door.connect_beside(
            self._key(level, serving_number),
            rank=rank,
            addresses=pair_of(self._door.address, peer.address, rank=rank),
            idle_s=IDLE_S,
        )

    def cancel(self, level: str, *, serving_number: int) -> None:
        """Breaks off a `connect`, from another thread."""
        self._door.cancel(self._key(level, serving_number))

    def _key(self, level: str, number: int) -> GroupKey:
        return GroupKey(run=self._run, view=number, attempt=0, level=level)
