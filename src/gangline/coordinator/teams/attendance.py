# SPDX-License-Identifier: Apache-2.0
"""Which teams are there: by their members' connections, and by when they were last heard of."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gangline.control.members.watch import BUSY_FACTOR, MIN_PATIENCE_S
from gangline.control.sync.rounds import AWAY_S

if TYPE_CHECKING:
    from gangline.coordinator.teams.team import Team

RETURN_S = 4.0
"""The same, right after the coordinator was started again."""


class Attendance:
    """When each worker gave its last sign of life."""

    def __init__(self, *, patience_s: float = MIN_PATIENCE_S) -> None:
        """A team that others wait for may be silent for `patience_s` at least."""
        self.away_s = AWAY_S
        self._patience_s = patience_s
        self._busy_s: dict[int, float] = {}
        self._heard_s: dict[int, float] = {}

    def hear(self, worker: int, now: float) -> None:
        """A worker gave a sign of life."""
        self._heard_s[worker] = now

    def see_busy(self, worker: int, now: float) -> None:
        """A worker computes, and cannot say so itself."""
        self._busy_s[worker] = now

    def find_away(self, team: Team, now: float) -> str | None:
        """Why a team is lost: none of its members has been connected for too long."""
        if team.mind.has_all_ended:
            return "the processes of all its workers have ended"
        if team.mind.is_connected:
            team.away_since_s = None
            return None
        if team.away_since_s is None:
            team.away_since_s = now
        if now - team.away_since_s < self.away_s:
            return None
        return f"none of its workers has been connected for {now - team.away_since_s:.1f} s"

    def find_hung(self, team: Team, now: float, *, patience_s: float) -> str | None:
        """Why a team that others wait for is lost: it is connected, and silent."""
        silent_s = now - max(self._heard_s.get(member, now) for member in team.members)
        busy_s = now - max(self._busy_s.get(member, -math.inf) for member in team.members)
        is_busy = busy_s <= MIN_PATIENCE_S
        patience_s = max(patience_s, self._patience_s * (BUSY_FACTOR if is_busy else 1.0))
        if silent_s < patience_s:
            return None
        return f"silent for {silent_s:.1f} s while other teams wait for it"
