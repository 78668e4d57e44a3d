# SPDX-License-Identifier: Apache-2.0
"""What a simulated worker was told as a member of a team, until it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.protocol.messages import (
    EpochClosed,
    LeaseGranted,
    RoundClosed,
    RoundOpened,
    Served,
    Turn,
)
from gangline.spec.leases import Lease
from gangline.spec.serving import NOBODY

if TYPE_CHECKING:
    from gangline.protocol.messages import FromCoordinator
    from gangline.spec.serving import Serving

_KEPT_ROUNDS = 8


class Inbox:
    """Leases, rounds, turns, who serves, and how the last epoch ended."""

    def __init__(self) -> None:
        self.leases: dict[tuple[int, int], Lease] = {}
        """By epoch and number."""
        self.opened: dict[int, RoundOpened] = {}
        self.closed: dict[int, RoundClosed] = {}
        self.epoch_closed: EpochClosed | None = None
        self.serving: Serving | None = None
        """The newest order of parameter servers."""
        self._rebuilt: dict[int, int] = {}
        """By order of servers: to before which entry all went back with it."""
        self._turns: dict[tuple[int, int], Turn] = {}
        """By epoch, and the push that they answer."""

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
            case Served(serving=serving):
                if self.serving is None or serving.number > self.serving.number:
                    self.serving = serving
                    if serving.source != NOBODY:
                        self._rebuilt[serving.number] = serving.applied
            case Turn(epoch=epoch, pushed=pushed):
                self._turns = dict(list(self._turns.items())[-_KEPT_ROUNDS:])
                self._turns[epoch, pushed] = message

    def next_opening(self, after: int) -> RoundOpened | None:
        """The first round after this one that was opened."""
        later = [number for number in self.opened if number > after]
        return self.opened[min(later)] if later else None

    @property
    def serving_number(self) -> int:
        """Of the newest order of servers; -1: none."""
        return -1 if self.serving is None else self.serving.number

    def turn(self, epoch: int, pushed: int) -> Turn | None:
        """The answer to a push, if it has come."""
        return self._turns.get((epoch, pushed))

    def forget_turns(self, epoch: int, *pushed: int) -> None:
        """They are asked for again."""
        gone = {(epoch, one) for one in pushed}
        self._turns = {key: one for key, one in self._turns.items() if key not in gone}

    def known_of(self, upto: int, *, serving: int) -> int:
        """Of entries up to here, told under an order of servers: how many are still in the sequence."""
        return min([upto, *(applied for at, applied in self._rebuilt.items() if at > serving)])

    def leave_team(self) -> None:
        """What was meant for another team holds no more."""
        self.leases, self._turns = {}, {}

    def forget_empty(self) -> None:
        """Where nothing was to be had, it is asked for again."""
        self.leases = {at: one for at, one in self.leases.items() if one.start < one.stop}
