# SPDX-License-Identifier: Apache-2.0
"""Notices that a group is broken, and who is to blame: the coordinator's eyes.

Four things are seen: a member says that an exchange failed, a member's connection ends, a member is
silent, all members wait in an exchange. None of them alone means that somebody is gone. A lost
connection may be the network between here and there while the exchange goes on; silence is nobody's
business while steps are made; and who waits may wait for a large state to travel.

Silence is not a hang either: a process that computes without ever letting its other threads run is
silent, too. Whoever watches it from beside says that it is busy, and it is waited for much longer.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from gangline.control.members.ranks import Ranks
from gangline.spec.config import LEAST_PATIENCE_S

if TYPE_CHECKING:
    from numpy.typing import NDArray

GRACE_S = 0.3
"""After the first report of a failure, how long to wait for the connection of a dead member to end."""
MIN_PATIENCE_S = LEAST_PATIENCE_S
MAX_PATIENCE_S = 60.0
PATIENCE_STEPS = 5.0
"""A member that others wait for may be silent for so many usual steps."""
BUSY_FACTOR = 30.0
"""A member that is silent, but busy, is waited for so many times as long as the patience."""
STALL_S = 1.5
"""Where all members wait for each other, nobody computes: they are asked whom they reach after so
long, however long their steps take. To ask costs little."""
STALL_EXCHANGES = 3.0
"""But not before so many usual exchanges have passed: much may be on its way."""


class Watch:
    """What was seen of the present group's members."""

    def __init__(
        self,
        members: tuple[int, ...],
        now: float,
        *,
        has_stepped: bool = False,
        patience_s: float = MIN_PATIENCE_S,
    ) -> None:
        """`patience_s` is how long a member may be silent at least while others wait for it."""
        self._least_patience_s = patience_s
        self._ranks = Ranks(members)
        self._heard_s = np.full(len(members), now)
        self._busy_s: dict[int, float] = {}
        self._waiting_since_s: dict[int, float] = {}
        self._asked_until_s = 0.0
        """So long a wait was looked into already."""
        self._newcomers: frozenset[int] = frozenset()
        self._away: dict[int, float] = {}
        self._failed: dict[int, str] = {}
        self._failed_s: float | None = None
        self._progress_s = now
        self._newest_step: int | None = None
        self.has_stepped = has_stepped
        """Whether the group has trained, so that its members have found each other."""
        self._step_times: deque[float] = deque(maxlen=16)
        self._exchange_times: deque[float] = deque(maxlen=16)
        """By step, of the member that waited least for the others."""

    @property
    def members(self) -> tuple[int, ...]:
        """Who is watched."""
        return self._ranks.members

    def succeed(self, members: tuple[int, ...], now: float) -> Watch:
        """The watch over the group after this one, whose steps will take about as long."""
        watch = Watch(members, now, patience_s=self._least_patience_s)
        watch._newcomers = frozenset(members) - frozenset(self.members)
        watch._step_times.extend(self._step_times)
        watch._exchange_times.extend(self._exchange_times)
        return watch

    def hear(self, worker: int, now: float) -> None:
        """A member gave a sign of life."""
        rank = self._ranks.get(worker)
        if rank is not None:
            self._heard_s[rank] = now
            self._away.pop(worker, None)

    def hear_many(self, workers: NDArray[np.int64], now: float) -> None:
        """All of these, who are members, gave a sign of life."""
        self._heard_s[self._ranks.of(workers)] = now
        if self._away:
            for worker in workers.tolist():
                self._away.pop(worker, None)

    def see_busy(self, worker: int, now: float) -> None:
        """A member cannot speak for itself, but computes: somebody beside it says so."""
        if worker in self._ranks:
            self._busy_s[worker] = now

    def lose_connection(self, worker: int, now: float) -> None:
        """A member's connection ended."""
        if worker in self._ranks:
            self._away.setdefault(worker, now)

    def report_failure(self, worker: int, error: str, now: float) -> None:
        """A member says that an exchange failed."""
        if worker in self._ranks:
            self._failed.setdefault(worker, error)
            if self._failed_s is None:
                self._failed_s = now

    def report_waiting(self, worker: int, waiting_s: float, now: float) -> None:
        """A member has been in its present exchange for so long; 0: it is in none."""
        self._waiting_since_s.pop(worker, None)
        if worker in self._ranks and waiting_s > 0:
            self._waiting_since_s[worker] = now - waiting_s

    def report_step(
        self, now: float, *, step: int, is_own: bool = True, exchange_s: float = 0.0
    ) -> None:
        """A member finished a step: all were there. Unless it is the group before's (not its own).

        Only the first report of a step says how long it took: the others' follow at once.
        """
        self._note_exchange(step, exchange_s)
        num_steps = 1 if self._newest_step is None else step - self._newest_step
        if num_steps > 0:
            if self._failed_s is None and now > self._progress_s:
                self._step_times.append((now - self._progress_s) / num_steps)
            self._newest_step = step
            self._progress_s = now
            self._asked_until_s /= 2
        self.has_stepped = self.has_stepped or is_own

    def _note_exchange(self, step: int, exchange_s: float) -> None:
        if self._newest_step is None or step > self._newest_step:
            self._exchange_times.append(exchange_s)
        elif step == self._newest_step:
            self._exchange_times[-1] = min(self._exchange_times[-1], exchange_s)

    @property
    def waiting(self) -> tuple[int, ...]:
        """Who has said that it is in an exchange."""
        return tuple(self._waiting_since_s)

    @property
    def has_failed(self) -> bool:
        """Whether a member has said that an exchange failed."""
        return self._failed_s is not None

    @property
    def patience_s(self) -> float:
        """How long a member may be silent while the others wait for it."""
        least_s = self._least_patience_s
        usual_s = median(self._step_times) if self._step_times else MIN_PATIENCE_S
        return min(max(least_s, PATIENCE_STEPS * usual_s), max(least_s, MAX_PATIENCE_S))

    def _patience_with(self, worker: int, now: float) -> float:
        """The same for one member, which may be busy."""
        is_busy = now - self._busy_s.get(worker, -math.inf) <= MIN_PATIENCE_S
        return max(self.patience_s, BUSY_FACTOR * self._least_patience_s * is_busy)

    @property
    def stall_s(self) -> float:
        """How long all members may wait for each other before they are asked whom they reach."""
        usual_s = median(self._exchange_times) if self._exchange_times else 0.0
        return min(max(STALL_S, STALL_EXCHANGES * usual_s), MAX_PATIENCE_S)

    def find_stall(self, now: float) -> str | None:
        """How long all members have waited for each other, where that is too long; else None.

        Who computes does not wait: so nobody is slow, and something between them is broken. Or very
        much is on its way: then this is said again only after twice the time.
        """
        if len(self._waiting_since_s) < len(self._ranks) or self._failed_s is not None:
            return None
        since_s = now - max(self._waiting_since_s.values(), default=now)
        if since_s <= max(self.stall_s, self._asked_until_s):
            return None
        self._asked_until_s = 2 * since_s
        return f"all {len(self._ranks)} members wait for each other for {since_s:.1f} s"

    def find_lost(self, now: float) -> tuple[tuple[int, ...], str] | None:
        """Who is lost, and how that was noticed; None while the group is taken to be whole."""
        if self._failed_s is not None:
            return self._find_dead(now)
        absent = tuple(worker for worker in self._away if self._is_missed(worker, now))
        if absent and not self.has_stepped and len(absent) < len(self._ranks):
            # Nobody can say that an exchange failed: the others still wait for it to come.
            names = ", ".join(str(worker) for worker in sorted(absent))
            return (
                absent,
                f"worker {names} is gone: its connection ended before the group's first step",
            )
        since_s = now - self._progress_s
        if since_s <= self.patience_s:
            return None  # however long somebody has been silent, nobody has waited long
        silent = {
            worker: patience_s
            for worker, at in zip(self.members, self._heard_s.tolist(), strict=True)
            if min(now - at, since_s) > (patience_s := self._patience_with(worker, now))
        }
        if silent and len(silent) < len(self._ranks):
            names = ", ".join(str(worker) for worker in silent)
            return tuple(silent), (
                f"worker {names} silent for more than {min(silent.values()):.1f} s while the others "
                f"wait (no step for {since_s:.1f} s)"
            )
        return None

    def _is_missed(self, worker: int, now: float) -> bool:
        """Whether the others wait for it. They do not while they still train without newcomers."""
        since_s = self._away[worker]
        if worker not in self._newcomers:
            since_s = max(since_s, self._progress_s)
        return now - since_s > GRACE_S

    def _find_dead(self, now: float) -> tuple[tuple[int, ...], str] | None:
        assert self._failed_s is not None
        dead = tuple(worker for worker in self._away if worker not in self._failed)
        if dead:
            names = ", ".join(str(worker) for worker in sorted(dead))
            return dead, f"worker {names} is gone: its connection ended and an exchange failed"
        # Everybody may be well: a link that broke for a moment. Wait a little, then try again.
        if now - self._failed_s > GRACE_S or len(self._failed) == len(self._ranks):
            worker, error = next(iter(self._failed.items()))
            return (), f"worker {worker} reports a failed exchange, nobody is missing ({error})"
        return None
