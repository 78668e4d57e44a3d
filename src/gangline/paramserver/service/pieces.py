# SPDX-License-Identifier: Apache-2.0
"""Parts of a push that come before the rest of it, while the backward pass goes on.

A piece counts nothing by itself. The push that follows says which pieces it counts on, by their
numbers; where a server does not have one of them, it refuses the push, and all is pushed again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gangline.paramserver.service.pushes import gradient_from
from gangline.spec.errors import MismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangline.paramserver.service.pushes import Gradient


class PiecesMissing(MismatchError):
    """A push counts on pieces that are not here: push everything."""


class _Piece(NamedTuple):
    number: int
    gradient: Gradient


class Pieces:
    """What teams have pushed early, of the newest clock of each."""

    def __init__(self) -> None:
        self._clocks: dict[int, int] = {}
        self._pieces: dict[int, dict[int, _Piece]] = {}
        """By team and by the parameter's index."""

    def put(self, team: int, clock: int, number: int, gradients: Mapping[int, Gradient]) -> None:
        """Keeps a piece, in place of what was pushed for the same parameters before."""
        if clock != self._clocks.get(team):
            self.forget(team)
        self._clocks[team] = clock
        kept = self._pieces.setdefault(team, {})
        for index, gradient in gradients.items():
            kept[index] = _Piece(number, gradient)

    def find(self, team: int, clock: int, wanted: Mapping[int, int]) -> dict[int, Gradient]:
        """The gradients that were pushed under these numbers, by the parameter's index."""
        kept = self._pieces.get(team, {}) if self._clocks.get(team) == clock else {}
        missing = [i for i, number in wanted.items() if i not in kept or kept[i].number != number]
        if missing:
            raise PiecesMissing(
                f"the push of team {team} at clock {clock} counts on {len(missing)} gradients that "
                "were pushed early, and are not here"
            )
        return {index: kept[index].gradient for index in wanted}

    def forget(self, team: int) -> None:
        """Drops what a team has pushed early: it is used, or void."""
        self._clocks.pop(team, None)
        self._pieces.pop(team, None)

    def drop(self, team: int, clock: int) -> None:
        """Drops it if it is of this clock or before."""
        if self._clocks.get(team, clock + 1) <= clock:
            self.forget(team)

    def clear(self) -> None:
        """Drops everything."""
        self._clocks.clear()
        self._pieces.clear()

    def export(self) -> list[Any]:
        """For a replica."""
        return [
            [team, clock, [[index, *piece] for index, piece in self._pieces[team].items()]]
            for team, clock in self._clocks.items()
        ]

    def load(self, exported: list[Any]) -> None:
        """Becomes what another one has exported."""
        self.clear()
        for team, clock, pieces in exported:
            for index, number, gradient in pieces:
                self.put(team, clock, number, {index: gradient_from(gradient)})
