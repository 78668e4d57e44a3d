# SPDX-License-Identifier: Apache-2.0
"""What all members must come to: the exchange of a step, the end of an epoch, a new group."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangline.planning.allocation.bounds import Floats, Shares
    from gangline.simulation.course import Position
    from gangline.simulation.engine.progress import Pulled
    from gangline.spec.view import View

BEFORE_EXCHANGE = ("data", "forward", "backward", "part", "exchange")
AT_END = ("end", "call")


class Round:
    """One attempt of a group at something that all of its members must come to."""

    def __init__(
        self,
        view: View,
        position: Position,
        *,
        ranks: Mapping[int, int],
        started_s: float,
        compute_s: Floats | None = None,
    ) -> None:
        """`ranks` are the members'. Without `compute_s` it is the end of an epoch: all come at once."""
        self.view = view
        self.position = position
        self.after = position
        """Where those are who have done it."""
        self.is_step = compute_s is not None
        self.started_s = started_s
        self.compute_s: Floats = np.zeros(len(view.members)) if compute_s is None else compute_s
        self.samples: Shares = np.zeros(0, dtype=np.int64)
        self.ready_s: Floats = started_s + self.compute_s
        """When each member is there, by rank."""
        self.lasts_s = 0.0
        """What it takes once all are there."""
        self.exchange_s = 0.0
        """The exchange, of that."""
        self.served_s = 0.0
        """Pushing to parameter servers, waiting for a turn and pulling, of that."""
        self.pulled: Pulled | None = None
        """Where the team stands with its servers when it has done it; None: where it stood."""
        self.is_broken = False
        self.is_over = False
        self.ahead: set[int] = set()
        """Who has done it alone, while the others still wait for it to wake."""
        self.gone: set[int] = set()
        """Who has noticed that it failed, and left."""
        self.slowdown: Floats = np.zeros(0)
        """How many times as long as at first each member takes."""
        self.parts: list[list[tuple[int, int]]] = []
        """Where parts are pulled: each member's, by rank."""
        self._ranks = ranks

    @property
    def told(self) -> tuple[Shares, Floats]:
        """Each one's share and what it cost, as the coordinator compares them.

        Where parts are pulled: its share of the view, and what that would have cost.
        """
        if not self.parts:
            return self.samples, self.compute_s
        shares = np.where(self.samples > 0, np.array(self.view.shares, dtype=np.int64), 0)
        return shares, self.compute_s * shares / np.maximum(self.samples, 1)

    @property
    def places(self) -> tuple[str, ...]:
        """The places that a worker comes by on its way here."""
        return BEFORE_EXCHANGE if self.is_step else AT_END

    def is_awaited(self, now: float) -> bool:
        """Whether a member is still on its way."""
        return bool(((self.ready_s > now) & np.isfinite(self.ready_s)).any())

    def holds(self, worker: int) -> bool:
        """Whether this worker is on its way here, or here and waiting."""
        return worker in self._ranks and worker not in self.gone and not self.is_over

    def ready_of(self, worker: int) -> float:
        """When this member is there."""
        return float(self.ready_s[self._ranks[worker]])

    def place_s(self, worker: int, place: str) -> float:
        """When this member comes, or came, to a place."""
        compute_s = float(self.compute_s[self._ranks[worker]])
        before = {"data": compute_s, "forward": compute_s, "backward": compute_s / 2}
        return max(self.started_s, self.ready_of(worker) - before.get(place, 0.0))

    def delay(self, worker: int, *, until: float, now: float) -> None:
        """A member does nothing until a time, and only then goes on."""
        rank = self._ranks[worker]
        self.ready_s[rank] = max(float(self.ready_s[rank]) - now, 0.0) + until

    def slow_down(self, worker: int, factor: float, *, now: float) -> None:
        """A member takes `factor` times as long, if it has not finished computing."""
        rank = self._ranks[worker]
        if self.is_step and self.ready_s[rank] > now:
            self.ready_s[rank] += self.compute_s[rank] * (factor - 1)
            self.compute_s[rank] *= factor

    def lose(self, worker: int) -> None:
        """A member will never come."""
        self.ready_s[self._ranks[worker]] = math.inf
        self.gone.add(worker)


class Meeting:
    """The members of a new group, finding each other."""

    def __init__(self, view: View, *, is_recovery: bool) -> None:
        self.view = view
        self.members = frozenset(view.members)
        self.is_recovery = is_recovery
        """Whether the group takes the place of a broken one."""
        self.present: set[int] = set()

    @property
    def is_complete(self) -> bool:
        """Whether all members are here."""
        return len(self.present) == len(self.view.members)
