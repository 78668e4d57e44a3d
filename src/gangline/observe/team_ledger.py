# SPDX-License-Identifier: Apache-2.0
"""The ledger where groups train at their own pace: what each team merged, in the epoch's order.

A team's steps count their samples in the team's own order, which is that of its leases. Its steps up
to the offset of its last committed round count; what came after was lost with the team, or is still
under way, and belongs to whoever had these samples next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.spec.event import RoundEnded, SamplesLeased

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gangline.observe.ledger import Window
    from gangline.spec.event import Event


class TeamOrders:
    """What was leased to which team, and how much of it was merged."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._leases: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
        self._merged: dict[tuple[int, int], int] = {}
        for event in events:
            match event:
                case SamplesLeased(team=team, epoch=epoch):
                    ranges = self._leases.setdefault((team, epoch), {})
                    ranges[event.number] = (event.start, event.stop)
                case RoundEnded(is_committed=True, epoch=epoch):
                    for name, offset in event.offsets.items():
                        key = (int(name), epoch)
                        self._merged[key] = max(self._merged.get(key, 0), offset)

    @property
    def is_used(self) -> bool:
        """Whether samples were leased at all."""
        return bool(self._leases)

    def merged(self, team: int, windows: Sequence[Window]) -> list[Window]:
        """The windows of a team in the epoch's order, as far as they were merged."""
        found = []
        for window in windows:
            stop = min(window.stop, self._merged.get((team, window.epoch), 0))
            places = self._places(team, window.epoch, window.start, stop)
            is_whole = stop == window.stop and len(places) == 1
            for low, high in places:
                part = msgspec.structs.replace(window, start=low, stop=high)
                # Who computed how much of a part is not known: the cut was made before.
                found.append(part if is_whole else msgspec.structs.replace(part, samples={}))
        return found

    def _places(self, team: int, epoch: int, start: int, stop: int) -> list[tuple[int, int]]:
        places = []
        before = 0
        ranges = self._leases.get((team, epoch), {})
        for number in sorted(ranges):
            first, last = ranges[number]
            low, high = max(start, before), min(stop, before + last - first)
            if low < high:
                places.append((first + low - before, first + high - before))
            before += last - first
        return places
