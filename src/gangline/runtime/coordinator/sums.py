# SPDX-License-Identifier: Apache-2.0
"""Sums over all teams, for calls outside of the epochs: each team brings its part once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gangline.runtime.messages import Heard

if TYPE_CHECKING:
    from collections.abc import Collection

    from gangline.runtime.messages import Told

_KEPT = 16
"""So many sums are remembered for who asks again, and so many may wait for some team's part."""


class Part(NamedTuple):
    """What a team brings, and by whom it was told first."""

    worker: int
    told: Told


class Sums:
    """What teams have told, until it is complete; and the last sums."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        """The last sums."""
        self._parts: dict[tuple[int, int], dict[int, Part]] = {}

    def find(self, told: Told) -> Heard | None:
        """A sum that is complete already."""
        key = (told.epoch, told.call)
        return next((one for one in self.heard if (one.epoch, one.call) == key), None)

    def other(self, told: Told) -> Part | None:
        """A team's part at the same place that belongs to another call, if there is one."""
        parts = self._parts.get((told.epoch, told.call), {})
        return next((one for one in parts.values() if one.told.name != told.name), None)

    def add(self, team: int, worker: int, told: Told) -> None:
        """A member brings its team's part; all members bring the same."""
        parts = self._parts.setdefault((told.epoch, told.call), {})
        parts.setdefault(team, Part(worker, told))
        for old in list(self._parts)[:-_KEPT]:
            del self._parts[old]

    def lacking(self, team: int, epoch: int) -> Part | None:
        """A call before this epoch that others have made, and this team, which is in it, has not."""
        for key, parts in self._parts.items():
            if key[0] == epoch and parts and team not in parts:
                return next(iter(parts.values()))
        return None

    def complete(self, teams: Collection[int]) -> list[Heard]:
        """The sums for which nothing is missing any more, if these are the teams."""
        done = [key for key, parts in self._parts.items() if parts.keys() >= {*teams}]
        found = []
        for epoch, call in done if teams else ():
            parts = self._parts.pop((epoch, call))
            told = [parts[team].told for team in teams]
            columns = zip(*(one.values for one in told), strict=False)
            found.append(
                Heard(
                    epoch=epoch,
                    call=call,
                    values=tuple(sum(column) for column in columns),
                    payloads=tuple(one.payload for one in told if one.payload),
                )
            )
        self.heard = [*self.heard, *found][-_KEPT:]
        return found
