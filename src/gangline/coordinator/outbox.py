# SPDX-License-Identifier: Apache-2.0
"""Collects what a coordinator wants kept and written while it deals with one input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.coordinator.outputs import Keep, KeepPlan, Write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.coordinator.kept.records import AnyRecord
    from gangline.coordinator.outputs import Output
    from gangline.spec.event import AnyEvent, Event
    from gangline.spec.plan import Plan


class InputClock:
    """Shows the time of the present input; an object, because a recording holds no bound methods."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Outbox:
    """A journal, an event sink and a clock, for those inside that need one."""

    def __init__(self, records: Sequence[AnyRecord], now: float) -> None:
        self.records = records
        self.clock = InputClock(now)
        self._outputs: list[Output] = []

    def begin(self, now: float) -> None:
        """The next input happened at this time."""
        self.clock.now = now

    def take(self) -> list[Output]:
        """What has come together since the last time."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def append(self, record: AnyRecord) -> None:
        """Keeps a record."""
        self._outputs.append(Keep(record=record))

    def keep_plan(self, plan: Plan) -> None:
        """Keeps a plan where people find it."""
        self._outputs.append(KeepPlan(plan=plan))

    def write(self, event: Event) -> None:
        """Takes one event."""
        known: AnyEvent = event  # type: ignore[assignment]
        self._outputs.append(Write(event=known))

    def flush(self) -> None:
        """There is nothing to flush."""

    def close(self) -> None:
        """There is nothing to close."""
