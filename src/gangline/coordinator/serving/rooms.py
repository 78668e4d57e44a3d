# SPDX-License-Identifier: Apache-2.0
"""What workers said of the memory that they have for shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.control.sync.placing import Room

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangline.coordinator.teams.team import Team
    from gangline.protocol.messages import Ready


def room_of(ready: Ready) -> Room:
    """What a worker would hold as a server of everything, and has room for."""
    return Room(needed_bytes=ready.serving_bytes, free_bytes=ready.free_bytes)


def cramped(teams: Iterable[Team], *, servers: int) -> frozenset[int]:
    """The members of teams that have no room for one of so many shards."""
    ready = {worker: team.mind.readied(worker) for team in teams for worker in team.members}
    return frozenset(
        worker
        for worker, own in ready.items()
        if own is not None and not room_of(own).holds(servers)
    )
