# SPDX-License-Identifier: Apache-2.0
"""What the coordinator has told this worker as a member of a team, until it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from gangline.protocol.messages import (
    EpochClosed,
    Heard,
    LeaseGranted,
    RoundClosed,
    RoundOpened,
    Served,
    Turn,
)

if TYPE_CHECKING:
    from gangline.protocol.messages import ToTeam
    from gangline.spec.serving import Serving

T = TypeVar("T")

_KEPT_ROUNDS = 16


class TeamPost:
    """Filled by the thread that listens to the coordinator, read by the training loop."""

    def __init__(self) -> None:
        self._epoch = -1
        self._leases: dict[tuple[int, int], LeaseGranted] = {}
        """Of this epoch, and what is asked for again of an older one."""
        self._opened: dict[int, RoundOpened] = {}
        self._closed: dict[int, RoundClosed] = {}
        self._heard: dict[tuple[int, int], Heard] = {}
        self.epoch_closed: EpochClosed | None = None
        self.serving: Serving | None = None
        """Who holds the parameters, where there are parameter servers."""
        self._turns: dict[tuple[int, int, int], Turn] = {}
        """By epoch, team and push: who enters another team may hear of both."""
        self.newest_opened = -1
        """The newest round that was opened."""
        self.newest_closed = -1
        """Every round up to this one is over."""

    def put(self, message: ToTeam) -> None:
        """Keeps a message."""
        match message:
            case LeaseGranted(epoch=epoch, number=number):
                if epoch > self._epoch:
                    self._epoch, self._leases = epoch, {}
                self._leases[epoch, number] = message
            case RoundOpened(number=number):
                self._opened = _newest({**self._opened, number: message})
                self.newest_opened = max(self.newest_opened, number)
            case RoundClosed(number=number):
                self._closed = _newest({**self._closed, number: message})
                self.newest_closed = max(self.newest_closed, number)
            case EpochClosed():
                self.epoch_closed = message
            case Served(serving=serving):
                self.serving = serving
            case Turn(epoch=epoch, team=team, pushed=pushed):
                turns = {key: one for key, one in self._turns.items() if key[0] == epoch}
                kept = list(turns.items())[-_KEPT_ROUNDS:]
                self._turns = {**dict(kept), (epoch, team, pushed): message}
            case Heard(epoch=epoch, call=call):
                self._heard = {key: one for key, one in self._heard.items() if key[0] >= epoch - 1}
                self._heard[epoch, call] = message

    def lease(self, epoch: int, number: int) -> LeaseGranted | None:
        """What was granted, if the answer has come."""
        return self._leases.get((epoch, number))

    def forget_leases(self) -> None:
        """They were those of a team that this worker is not in any more."""
        self._leases = {}
        self._turns = {}

    def turn(self, epoch: int, team: int, pushed: int) -> Turn | None:
        """The answer to a team's push, if it has come."""
        return self._turns.get((epoch, team, pushed))

    def forget_turn(self, epoch: int, team: int, pushed: int) -> None:
        """It is asked for again."""
        key = (epoch, team, pushed)
        self._turns = {other: one for other, one in self._turns.items() if other != key}

    def forget_lease(self, epoch: int, number: int) -> None:
        """Nothing was to be had: it is asked for again."""
        granted = self._leases.get((epoch, number))
        if granted is not None and granted.start == granted.stop:
            del self._leases[epoch, number]

    def opening(self, number: int) -> RoundOpened | None:
        """A round that was opened, if it is not long ago."""
        return self._opened.get(number)

    def next_opening(self, after: int) -> RoundOpened | None:
        """The first round after this one that was opened."""
        later = [number for number in self._opened if number > after]
        return self._opened[min(later)] if later else None

    def closing(self, number: int) -> RoundClosed | None:
        """How a round ended, if it is not long ago."""
        return self._closed.get(number)

    def heard(self, epoch: int, call: int) -> Heard | None:
        """A sum over all teams, if it has come."""
        return self._heard.get((epoch, call))


def _newest(rounds: dict[int, T]) -> dict[int, T]:
    return {number: rounds[number] for number in sorted(rounds)[-_KEPT_ROUNDS:]}
