# SPDX-License-Identifier: Apache-2.0
"""When teams that train at their own pace are merged, and whether a merge counts.

A round is opened, the leaders of the teams exchange copies of their parameters while everybody trains
on, and when every team holds the mean the round is committed: then all of them take it. If a team is
lost before, none of them does, and nothing is lost but the exchange.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import NamedTuple

from gangline.spec.sync import FLEXIBLE, PERCENTAGE, Sync

BUSY_PART = 0.05
"""`flexible`: a round may keep the teams from computing for so much of the time between two rounds."""
MAX_BUSY_PART = 0.15
"""And at most for so much, where the teams drift apart."""
DRIFT = 0.7
"""Teams whose copies are further from their mean than this, by how far the mean has moved since the
last round, pull in different directions: they are merged more often."""
CALM = 0.25
"""So much of the time of a round passes before the next one: the steps without a round are what those
beside one are compared with."""
MAX_RARITY = 8.0
AWAY_S = 1.5
"""A team none of whose members is connected for so long is lost."""
_REMEMBERED = 5
_REMEMBERED_BUSY = 9
"""What rounds take from the steps beside them is known less exactly than how long they take."""
_MIN_PATIENCE_S = 2.0
_PATIENCE_ROUNDS = 5.0


class Report(NamedTuple):
    """What one team says of its part in a round."""

    offset: int
    """How many samples of the epoch were in its copy."""
    busy_s: float
    exchange_s: float
    drift: float
    sent_bytes: int = 0
    """By its leader, to the other leaders."""


class Round:
    """One merge of these teams, while it lasts."""

    def __init__(
        self,
        number: int,
        teams: tuple[int, ...],
        *,
        opened_s: float,
        is_whole: bool,
        is_end: bool = False,
    ) -> None:
        self.number = number
        self.teams = teams
        self.opened_s = opened_s
        self.is_whole = is_whole
        """All teams wait for it: at the end of an epoch, or because they stop to be merged."""
        self.is_end = is_end
        """It ends an epoch."""
        self.reports: dict[int, Report] = {}

    @property
    def is_done(self) -> bool:
        """Whether every team holds the mean."""
        return len(self.reports) == len(self.teams)


class RoundClock:
    """Says when the next round is due: pure, from samples, times and what rounds have cost."""

    def __init__(self, sync: Sync, *, global_batch: int, now: float) -> None:
        self.sync = sync
        self.global_batch = global_batch
        """Samples of one step of all teams."""
        self._samples = 0
        self._opened_s = now
        self.rarity = 1.0
        """How many times more rarely than asked for: a team is held up by one of its workers."""
        self._took: deque[float] = deque(maxlen=_REMEMBERED)
        self._busy: deque[float] = deque(maxlen=_REMEMBERED_BUSY)
        self._drift: deque[float] = deque(maxlen=_REMEMBERED)

    def add_samples(self, count: int) -> None:
        """So many more samples were used, by whichever team."""
        self._samples += count

    def is_due(self, now: float) -> bool:
        """Whether a round in the background is due."""
        match self.sync.kind:
            case kind if kind == PERCENTAGE:
                return self._samples * self.sync.rate >= self.global_batch * self.rarity
            case kind if kind == FLEXIBLE:
                is_new = self._samples >= self.global_batch
                return is_new and now - self._opened_s >= self.interval_s
            case kind if self.sync.overlaps:
                # A step before the teams take their copies: they are not to wait for this.
                before = (self.sync.steps - 1) * self.global_batch
                return self._samples >= max(before, 1)
            case _:
                return False

    @property
    def interval_s(self) -> float:
        """`flexible`: the time from one round to the next.

        Long enough for the last exchange to be over for a while, and for what it takes from the teams
        to be a small part of it; shorter where the teams drift apart.
        """
        if not self._took:
            return 0.0
        took_s, busy_s = median(self._took), median(self._busy)
        part = min(BUSY_PART * max(1.0, self.drift / DRIFT), MAX_BUSY_PART)
        return max((1 + CALM) * took_s, busy_s / part) * self.rarity

    @property
    def drift(self) -> float:
        """How far the teams were apart lately."""
        return median(self._drift) if self._drift else 0.0

    @property
    def patience_s(self) -> float:
        """How long a round may take before somebody is asked for."""
        return max(_MIN_PATIENCE_S, _PATIENCE_ROUNDS * max(self._took, default=0.0))

    def lower(self) -> None:
        """Opens rounds half as often, within limits."""
        self.rarity = min(2 * self.rarity, MAX_RARITY)

    def begin(self, now: float) -> None:
        """A round is opened."""
        self._samples = 0
        self._opened_s = now

    def end(self, one: Round, now: float) -> None:
        """A round was committed: what it cost is what the next one will cost."""
        if one.is_whole:
            return  # everybody waited: it says nothing of a round in the background
        self._took.append(now - one.opened_s)
        self._busy.append(max(report.busy_s for report in one.reports.values()))
        self._drift.append(max(report.drift for report in one.reports.values()))
