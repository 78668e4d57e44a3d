# SPDX-License-Identifier: Apache-2.0
"""Sums over all teams, for calls outside of the epochs: each team brings its part once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gangline.protocol.messages import Heard

if TYPE_CHECKING:
    from collections.abc import Collection

    from gangline.protocol.messages import Told

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
        self._expected: tuple[int | None, frozenset[int]] = (None, frozenset())
        self._begun: dict[int, tuple[int, int]] = {}

    def expect(self, teams: Collection[int], epoch: int | None) -> None:
        """All calls of these teams before this epoch will be heard here; None: before their first."""
        self._expected = (epoch, frozenset(teams))

    def begin(self, team: int, worker: int, epoch: int) -> None:
        """A worker says that its team has begun an epoch."""
        self._begun[team] = (epoch, worker)

    def passed(self, team: int, told: Told) -> int | None:
        """A worker whose team has begun the epoch without this call before it, if there is one."""
        epoch, teams = self._expected
        own = self._begun.get(team)
        if team not in teams or epoch not in (None, told.epoch) or (own and own[0] >= told.epoch):
            return None  # who comes late, or is behind the others of its team, is no such case
        others = {one: begun for one, begun in self._begun.items() if one in teams}
        return next((by for begun, by in others.values() if begun == told.epoch), None)

    def waiting(self) -> list[Part]:
        """What was told, and is still to be completed by other teams."""
        return [part for parts in self._parts.values() for part in parts.values()]

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
