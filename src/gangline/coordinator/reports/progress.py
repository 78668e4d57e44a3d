# SPDX-License-Identifier: Apache-2.0
"""How far a job is, for whoever started it: whether it has come to its end, and who is heard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.protocol.messages import FINISHED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangline.coordinator.reports.bunch import Bunch
    from gangline.protocol.messages import Goodbye


class Progress:
    """What was heard of all workers, in whichever team they are."""

    def __init__(self, now: float) -> None:
        self._began_s = now
        self._heard_s: dict[int, float] = {}
        self._bunch: Bunch | None = None
        """Many that were heard at once, and when: not in `_heard_s` yet."""
        self._bunch_s = now
        self.finished: set[int] = set()
        """The members that have come to the end of their scripts."""
        self.samples = 0
        """Of all steps that were reported."""

    def hear(self, worker: int, now: float) -> None:
        """A worker gave a sign of life."""
        self._heard_s[worker] = now

    def hear_many(self, bunch: Bunch, now: float) -> None:
        """Many workers gave a sign of life."""
        if self._bunch is None or self._bunch.given.workers != bunch.given.workers:
            self._settle()
        self._bunch, self._bunch_s = bunch, now

    def _settle(self) -> None:
        """Writes down who was heard with many; some may have been heard since."""
        if self._bunch is not None:
            for worker in self._bunch.workers.tolist():
                self._heard_s[worker] = max(self._bunch_s, self._heard_s.get(worker, self._bunch_s))
        self._bunch = None

    def note_goodbye(self, worker: int, goodbye: Goodbye) -> None:
        """A member says goodbye: because all is done, or for another reason."""
        if goodbye.reason == FINISHED:
            self.finished.add(worker)

    def silent_s(self, workers: Iterable[int], now: float) -> float:
        """For how long none of them has been heard; 0 for nobody."""
        self._settle()
        heard = [self._heard_s.get(worker, self._began_s) for worker in workers]
        return now - max(heard) if heard else 0.0
