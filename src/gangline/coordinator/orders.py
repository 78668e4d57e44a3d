# SPDX-License-Identifier: Apache-2.0
"""An operator's orders that stand until they are taken back, and are said to whoever comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.coordinator.kept.records import EndOrdered, Paused
from gangline.coordinator.outgoing import Outgoing
from gangline.protocol.messages import Held, SaveAsked
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gangline.coordinator.kept.records import Journal
    from gangline.protocol.messages import Hello


class StandingOrders:
    """Whether the job is to stand still, or to end. They outlive the coordinator."""

    def __init__(self, journal: Journal, hellos: Mapping[int, Hello]) -> None:
        self._journal = journal
        self._hellos = hellos
        self._number = 0
        """How often the job was paused, or went on."""
        self.is_ending = False
        """Whether everybody is to leave."""
        for record in journal.records:
            if isinstance(record, Paused):
                self._number = record.number
            self.is_ending = self.is_ending or isinstance(record, EndOrdered)

    @property
    def is_paused(self) -> bool:
        """Whether the job is to stand still."""
        return self._number % 2 == 1

    def pause(self, *, is_paused: bool) -> list[Outgoing]:
        """Has the job stand still, or go on. Raises UsageError where it does."""
        if is_paused == self.is_paused:
            raise UsageError(f"the job {'is paused already' if is_paused else 'is not paused'}")
        if self.is_ending:
            raise UsageError("the job is being ended")
        return self._turn()

    def _turn(self) -> list[Outgoing]:
        self._number += 1
        self._journal.append(Paused(number=self._number))
        return self._tell(self._hellos)

    def end(self) -> list[Outgoing]:
        """Has everybody leave; a job that stands still goes on for that."""
        if self.is_ending:
            raise UsageError("the job is being ended already")
        self.is_ending = True
        self._journal.append(EndOrdered())
        return self._turn() if self.is_paused else []

    def go_on(self) -> list[Outgoing]:
        """What comes cannot be done while the job stands still."""
        return self._turn() if self.is_paused else []

    def save(self) -> list[Outgoing]:
        """Has a checkpoint written."""
        return [Outgoing(worker, SaveAsked()) for worker in self._hellos]

    def greet(self, worker: int) -> list[Outgoing]:
        """What a worker must know that comes, or comes back."""
        return self._tell([worker]) if self._number else []

    def _tell(self, workers: Iterable[int]) -> list[Outgoing]:
        return [Outgoing(worker, Held(number=self._number)) for worker in workers]
