# SPDX-License-Identifier: Apache-2.0
"""What a simulated worker was told as a member of a team, until it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.protocol.messages import EpochClosed, LeaseGranted, RoundClosed, RoundOpened
from gangline.spec.leases import Lease

if TYPE_CHECKING:
    from gangline.protocol.messages import FromCoordinator

_KEPT_ROUNDS = 8


class Inbox:
    """Leases, rounds, and how the last epoch ended."""

    def __init__(self) -> None:
        self.leases: dict[tuple[int, int], Lease] = {}
        """By epoch and number."""
        self.opened: dict[int, RoundOpened] = {}
        self.closed: dict[int, RoundClosed] = {}
        self.epoch_closed: EpochClosed | None = None

    @property
    def newest_opened(self) -> int:
        """The newest round that was opened."""
        return max(self.opened, default=-1)

    @property
    def newest_closed(self) -> int:
        """Every round up to this one is over."""
        return max(self.closed, default=-1)

    def put(self, message: FromCoordinator) -> None:
        """Keeps a message."""
        match message:
            case LeaseGranted(epoch=epoch, number=number):
                self.leases = {at: one for at, one in self.leases.items() if at[0] >= epoch}
                self.leases[epoch, number] = Lease(message.start, message.stop)
            case RoundOpened(number=number):
                self.opened[number] = message
                self.opened = {one: self.opened[one] for one in sorted(self.opened)[-_KEPT_ROUNDS:]}
            case RoundClosed(number=number):
                self.closed[number] = message
                self.closed = {one: self.closed[one] for one in sorted(self.closed)[-_KEPT_ROUNDS:]}
            case EpochClosed():
                self.epoch_closed = message

    def next_opening(self, after: int) -> RoundOpened | None:
        """The first round after this one that was opened."""
        later = [number for number in self.opened if number > after]
        return self.opened[min(later)] if later else None

    def forget_empty(self) -> None:
        """Where nothing was to be had, it is asked for again."""
        self.leases = {at: one for at, one in self.leases.items() if one.start < one.stop}
