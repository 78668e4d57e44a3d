# SPDX-License-Identifier: Apache-2.0
"""Sums over all teams, for `mean` outside of the epochs: each team brings its part once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.runtime.messages import Heard

if TYPE_CHECKING:
    from collections.abc import Collection

    from gangline.runtime.messages import Told

_KEPT = 16
"""So many sums are remembered for who asks again, and so many may wait for some team's part."""


class Sums:
    """What teams have told, until it is complete; and the last sums."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        """The last sums."""
        self._parts: dict[tuple[int, int], dict[int, tuple[float, ...]]] = {}

    def find(self, told: Told) -> Heard | None:
        """A sum that is complete already."""
        key = (told.epoch, told.call)
        return next((one for one in self.heard if (one.epoch, one.call) == key), None)

    def add(self, team: int, told: Told) -> None:
        """A member brings its team's part; all members bring the same."""
        parts = self._parts.setdefault((told.epoch, told.call), {})
        parts.setdefault(team, told.values)
        for old in list(self._parts)[:-_KEPT]:
            del self._parts[old]

    def complete(self, teams: Collection[int]) -> list[Heard]:
        """The sums for which nothing is missing any more, if these are the teams."""
        done = [key for key, parts in self._parts.items() if parts.keys() >= {*teams}]
        found = []
        for epoch, call in done if teams else ():
            parts = self._parts.pop((epoch, call))
            rows = [parts[team] for team in teams]
            total = tuple(sum(column) for column in zip(*rows, strict=False))
            found.append(Heard(epoch=epoch, call=call, values=total))
        self.heard = [*self.heard, *found][-_KEPT:]
        return found
