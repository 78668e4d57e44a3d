# SPDX-License-Identifier: Apache-2.0
"""How far a simulated worker has come, and its team's part in the merge that is under way."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gangline.simulation.course import Position
from gangline.spec.leases import TeamOrder

if TYPE_CHECKING:
    from gangline.protocol.messages import RoundOpened
    from gangline.spec.sync import Sync


@dataclass
class Merge:
    """One team's part in a merge."""

    opened: RoundOpened
    mark: int
    """How many samples of the epoch the team had used when its copy was taken."""
    busy_s: float
    """How long it has kept the team from computing."""
    held_s: float = math.inf
    """When all members have the mean."""
    is_told: bool = False


@dataclass(frozen=True)
class Pulled:
    """Where a team stands with its parameter servers."""

    epoch: int = -1
    is_begun: bool = False
    """Whether it has asked for a turn since all teams met."""
    clock: int = -1
    """Of the update that it computes now; -1: it is yet to hear."""
    known: int = 0
    """The first entry that is not in the parameters that it pulled last."""
    serving: int = -1
    """The order of servers that it pulled from last."""
    pushed: int = 0
    """Up to where in the team's order everything is pushed."""
    steps: int = 0
    """Where the worker updates by itself: the steps that it has made."""


@dataclass
class Progress:
    """What the members of a group have in common, and who comes later copies."""

    sync: Sync
    """How its team is held together with the others."""
    team: int = -1
    """The team that it was made in; -1: that of all workers, or none yet."""
    position: Position = field(default_factory=Position)
    order: TeamOrder = field(default_factory=TeamOrder)
    """What the team was given of the epoch."""
    steps: int = 0
    """Steps since the last stop."""
    last_round: int = -1
    """The newest round that it has taken part in."""
    last_closing: int = -1
    """The round with which the last epoch was closed, or all were stopped."""
    merge: Merge | None = None
    """The merge that is under way."""
    pulled: Pulled = Pulled()

    def copy(self) -> Progress:
        """The same, for who goes on from here."""
        merge = None if self.merge is None else replace(self.merge)
        return replace(self, order=TeamOrder(self.order.leases), merge=merge)
