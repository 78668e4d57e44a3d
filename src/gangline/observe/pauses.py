# SPDX-License-Identifier: Apache-2.0
"""When an operator had the job stand still: time that is no part of any step."""

from __future__ import annotations

import math
from bisect import insort
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gangline.spec.event import Decision

TURNS = {"pause": True, "resume_steps": False, "end": False}
"""What is decided, and whether the job stands still after it: one that is to end goes on for that."""


class Pause(NamedTuple):
    """From the order to stand still to the one to go on, by the clock of the log."""

    begin: float
    end: float
    """Infinite where nobody said to go on."""


class Pauses:
    """All pauses of a run; orders may come in any order of time."""

    def __init__(self) -> None:
        self.spans: list[Pause] = []
        self._turns: list[tuple[float, bool]] = []

    def add(self, decision: Decision) -> None:
        """A decision, which may be to stand still, or to go on."""
        turn = TURNS.get(decision.what)
        if turn is not None:
            insort(self._turns, (decision.t, turn))
            self.spans = _paired(self._turns)

    def within(self, begin: float, end: float) -> float:
        """How much of this time the job was to stand still."""
        total_s = 0.0
        for one in reversed(self.spans):  # steps are asked for as they come: the last ones matter
            if one.end <= begin:
                break
            total_s += max(0.0, min(end, one.end) - max(begin, one.begin))
        return total_s


def _paired(turns: list[tuple[float, bool]]) -> list[Pause]:
    spans: list[Pause] = []
    since: float | None = None
    for t, is_pause in turns:
        if is_pause and since is None:
            since = t
        elif not is_pause and since is not None:
            spans.append(Pause(since, t))
            since = None
    return spans if since is None else [*spans, Pause(since, math.inf)]
