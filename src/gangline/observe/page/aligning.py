# SPDX-License-Identifier: Apache-2.0
"""Steps that workers summed up, brought together.

Each worker sums up on its own, so one may say steps 100 to 180 where another says 100 to 179. What all
of them speak of is cut out, with as much of each one's times as it has of its steps.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from gangline.spec.event import StepsDone

_MOST_WAITING = 16
"""Ranges of one worker that wait for somebody else's."""


class Aligner:
    """Takes ranges of one view of one team, gives those that are of the same steps."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[StepsDone]] = {}

    def add(
        self, event: StepsDone, members: Collection[int] | None
    ) -> Iterator[dict[int, StepsDone]]:
        """The ranges that are whole now; `members` are those who should speak, where that is known."""
        own = self._waiting.setdefault(event.worker, deque())
        own.append(event)
        expected = self._waiting.keys() if members is None else members
        while all(self._waiting.get(one) for one in expected):
            yield self._cut()
        if len(own) > _MOST_WAITING:
            yield self._cut()

    def finish(self) -> Iterator[dict[int, StepsDone]]:
        """What is left, whoever else should have spoken."""
        while any(self._waiting.values()):
            yield self._cut()

    def _cut(self) -> dict[int, StepsDone]:
        """The first steps of which anybody speaks, as far as the same ones speak of them."""
        fronts = {worker: own[0] for worker, own in self._waiting.items() if own}
        first = min(one.step for one in fronts.values())
        speaking = {worker: one for worker, one in fronts.items() if one.step == first}
        count = min(one.steps for one in speaking.values())
        later = [one.step - first for one in fronts.values() if one.step > first]
        count = min([count, *later])
        return self._taken(speaking, count)

    def _taken(self, speaking: Mapping[int, StepsDone], count: int) -> dict[int, StepsDone]:
        taken = {}
        for worker, one in speaking.items():
            own = self._waiting[worker]
            own.popleft()
            head, tail = split(one, count)
            taken[worker] = head
            if tail is not None:
                own.appendleft(tail)
        return taken


def split(event: StepsDone, count: int) -> tuple[StepsDone, StepsDone | None]:
    """The first so many steps, and the others; None where there are no others."""
    if count >= event.steps:
        return event, None
    part = count / event.steps
    between = event.since + (event.t - event.since) * part
    samples = event.samples * count // event.steps
    middle = event.start + (event.stop - event.start) * count // event.steps
    names = ("compute_s", "data_s", "exchange_s", "update_s", "turn_s")
    times = {name: getattr(event, name) for name in names}
    head = msgspec.structs.replace(
        event,
        t=between,
        steps=count,
        samples=samples,
        stop=middle,
        **{name: value * part for name, value in times.items()},
    )
    tail = msgspec.structs.replace(
        event,
        since=between,
        step=event.step + count,
        steps=event.steps - count,
        samples=event.samples - samples,
        start=middle,
        **{name: value * (1 - part) for name, value in times.items()},
    )
    return head, tail
