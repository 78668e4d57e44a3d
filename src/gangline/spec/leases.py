# SPDX-License-Identifier: Apache-2.0
"""The samples of a team that trains at its own pace: ranges of the epoch, one after the other."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Lease(NamedTuple):
    """The samples start … stop - 1 of the epoch's order; none where the two are equal."""

    start: int
    stop: int


def leave_out(start: int, stop: int, void: Iterable[Lease]) -> list[Lease]:
    """What is left of start … stop - 1 without these."""
    found = []
    for one in sorted(void):
        if start < min(stop, one.start):
            found.append(Lease(start, min(stop, one.start)))
        start = max(start, one.stop)
    return [*found, Lease(start, stop)] if start < stop else found


class TeamOrder:
    """A team's own order of an epoch: its leases, in the order in which it got them."""

    def __init__(self, leases: Iterable[Lease] = ()) -> None:
        self.leases: list[Lease] = []
        self._ends: list[int] = []
        """Of each lease: how many samples the team has with it."""
        for lease in leases:
            self.append(lease)

    def __len__(self) -> int:
        return len(self.leases)

    @property
    def given(self) -> int:
        """How many samples the team has."""
        return self._ends[-1] if self._ends else 0

    def append(self, lease: Lease) -> None:
        """The team gets another lease."""
        self._ends.append(self.given + lease.stop - lease.start)
        self.leases.append(lease)

    def locate(self, start: int, stop: int) -> list[Lease]:
        """Where in the epoch's order a part of the team's order is, as far as the team has it."""
        found = []
        for place in range(bisect_right(self._ends, start), len(self.leases)):
            lease, end = self.leases[place], self._ends[place]
            before = end - (lease.stop - lease.start)
            if before >= stop:
                break
            low, high = max(start, before), min(stop, end)
            if low < high:
                found.append(Lease(lease.start + low - before, lease.start + high - before))
        return found
