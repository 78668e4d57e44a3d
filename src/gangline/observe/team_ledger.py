# SPDX-License-Identifier: Apache-2.0
"""The ledger where groups train at their own pace: what each team merged, in the epoch's order.

A team's steps count their samples in the team's own order, which is that of its leases. Its steps up
to the offset of its last committed round count; what came after was lost with the team, or is still
under way, and belongs to whoever had these samples next.

A worker that is killed takes the last lines of its log with it. Where no other member of its team tells
of these steps, the rounds do: what a team has brought to one, it has computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.observe.window import Window
from gangline.spec.event import RoundEnded, SamplesLeased, UpdateApplied, UpdateVoided
from gangline.spec.leases import Lease, TeamOrder, leave_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gangline.spec.event import Event


class TeamOrders:
    """What was leased to which team, and how much of it was merged."""

    def __init__(self, events: Iterable[Event]) -> None:
        leases: dict[tuple[int, int], dict[int, Lease]] = {}
        self._merged: dict[tuple[int, int], int] = {}
        self._void: dict[tuple[int, int], list[Lease]] = {}
        for event in events:
            match event:
                case SamplesLeased(team=team, epoch=epoch):
                    lease = Lease(event.start, event.stop)
                    leases.setdefault((team, epoch), {})[event.number] = lease
                case RoundEnded(is_committed=True, is_all=True, epoch=epoch):
                    for name, offset in event.offsets.items():
                        key = (int(name), epoch)
                        self._merged[key] = max(self._merged.get(key, 0), offset)
                case UpdateApplied(epoch=epoch):
                    for team, offset in zip(event.teams, event.offsets, strict=True):
                        self._merged[team, epoch] = max(self._merged.get((team, epoch), 0), offset)
                case UpdateVoided(team=team, epoch=epoch):
                    void = Lease(event.start, event.stop)
                    self._void.setdefault((team, epoch), []).append(void)
        self._orders = {
            key: TeamOrder(numbered[number] for number in sorted(numbered))
            for key, numbered in leases.items()
        }
        self._epochs = {epoch for _, epoch in leases}

    @property
    def is_used(self) -> bool:
        """Whether samples were leased at all."""
        return bool(self._orders)

    @property
    def teams(self) -> set[int]:
        """The teams that samples were leased to."""
        return {team for team, _ in self._orders}

    def merged(self, team: int, windows: Sequence[Window]) -> list[Window]:
        """The windows of a team in the epoch's order, as far as they were merged.

        Epochs of which nothing was leased were gone through in step, and are as they were.
        """
        found = []
        for window in windows:
            if window.epoch not in self._epochs:
                found.append(window)
                continue
            stop = min(window.stop, self._merged.get((team, window.epoch), 0))
            order = self._orders.get((team, window.epoch), TeamOrder())
            places = self._locate(order, (team, window.epoch), window.start, stop)
            is_whole = stop == window.stop and len(places) == 1
            for low, high in places:
                part = msgspec.structs.replace(window, start=low, stop=high)
                # Who computed how much of a part is not known: the cut was made before.
                found.append(part if is_whole else msgspec.structs.replace(part, samples={}))
        return found + self._untold(team, windows)

    def _untold(self, team: int, windows: Sequence[Window]) -> list[Window]:
        """What the team has brought to a round, behind the last step that somebody tells of."""
        found = []
        brought = {epoch: offset for (one, epoch), offset in self._merged.items() if one == team}
        for epoch, offset in brought.items():
            told = [window for window in windows if window.epoch == epoch]
            step = max((window.step + 1 for window in told), default=0)
            end = max((window.stop for window in told), default=0)
            order = self._orders.get((team, epoch), TeamOrder())
            found += [
                Window(step=step, epoch=epoch, start=low, stop=high, samples={})
                for low, high in self._locate(order, (team, epoch), min(end, offset), offset)
            ]
        return found

    def _locate(self, order: TeamOrder, key: tuple[int, int], start: int, stop: int) -> list[Lease]:
        """Where in the epoch's order a part of a team's order is, without what is void."""
        parts = leave_out(start, stop, self._void.get(key, ()))
        return [lease for part in parts for lease in order.locate(*part)]
