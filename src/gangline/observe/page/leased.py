# SPDX-License-Identifier: Apache-2.0
"""How many samples a run has used, in the room of its epochs; `observe.ledger` tells which.

Where samples were leased to teams, those count that were merged: what a team computed after its last
merge was lost with it, or is still under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.spec.event import RoundEnded, SamplesLeased, UpdateApplied, UpdateVoided

if TYPE_CHECKING:
    from gangline.spec.event import AnyEvent


class Used:
    """Counts by epoch."""

    def __init__(self) -> None:
        self._computed: dict[int, int] = {}
        self._leased: dict[tuple[int, int], int] = {}
        self._merged: dict[tuple[int, int], int] = {}
        self._voided = 0

    def compute(self, epoch: int, samples: int) -> None:
        """A step used these samples."""
        self._computed[epoch] = self._computed.get(epoch, 0) + samples

    def add(self, event: AnyEvent) -> None:
        """What a team was given, and what of it was merged."""
        if isinstance(event, SamplesLeased):
            key = (event.team, event.epoch)
            self._leased[key] = self._leased.get(key, 0) + event.stop - event.start
        elif isinstance(event, RoundEnded) and event.is_committed and event.is_all:
            for name, offset in event.offsets.items():
                key = (int(name), event.epoch)
                self._merged[key] = max(self._merged.get(key, 0), offset)
        elif isinstance(event, UpdateApplied):
            for team, offset in zip(event.teams, event.offsets, strict=True):
                key = (team, event.epoch)
                self._merged[key] = max(self._merged.get(key, 0), offset)
        elif isinstance(event, UpdateVoided):
            self._voided += event.stop - event.start

    @property
    def samples(self) -> int:
        """All that count."""
        parted = {epoch for _, epoch in self._leased}
        in_step = sum(count for epoch, count in self._computed.items() if epoch not in parted)
        merged = sum(
            min(offset, self._leased[key])
            for key, offset in self._merged.items()
            if key in self._leased
        )
        return in_step + max(0, merged - self._voided)
