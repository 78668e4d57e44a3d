# SPDX-License-Identifier: Apache-2.0
"""Notices that a group is broken, and who is to blame: the coordinator's eyes.

Three things are seen: a member says that an exchange failed, a member's connection ends, a member is
silent. None of them alone means that somebody is gone. A lost connection may be the network between
here and there while the exchange goes on; silence is nobody's business while steps are made.
"""

from __future__ import annotations

from collections import deque
from statistics import median

GRACE_S = 0.3
"""After the first report of a failure, how long to wait for the connection of a dead member to end."""
MIN_PATIENCE_S = 2.0
MAX_PATIENCE_S = 60.0
PATIENCE_STEPS = 5.0
"""A member that others wait for may be silent for so many usual steps."""


class Watch:
    """What was seen of the present group's members."""

    def __init__(self, members: tuple[int, ...], now: float, *, has_stepped: bool = False) -> None:
        self._heard_s = dict.fromkeys(members, now)
        self._away: dict[int, float] = {}
        self._failed: dict[int, str] = {}
        self._failed_s: float | None = None
        self._progress_s = now
        self._has_stepped = has_stepped
        self._step_times: deque[float] = deque(maxlen=16)

    def hear(self, worker: int, now: float) -> None:
        """A member gave a sign of life."""
        if worker in self._heard_s:
            self._heard_s[worker] = now
            self._away.pop(worker, None)

    def lose_connection(self, worker: int, now: float) -> None:
        """A member's connection ended."""
        if worker in self._heard_s:
            self._away.setdefault(worker, now)

    def report_failure(self, worker: int, error: str, now: float) -> None:
        """A member says that an exchange failed."""
        if worker in self._heard_s:
            self._failed.setdefault(worker, error)
            if self._failed_s is None:
                self._failed_s = now

    def report_step(self, now: float) -> None:
        """A member finished a step: all of them were there."""
        if self._failed_s is None and now > self._progress_s:
            self._step_times.append(now - self._progress_s)
        self._progress_s = now
        self._has_stepped = True

    @property
    def patience_s(self) -> float:
        """How long a member may be silent while the others wait for it."""
        usual_s = median(self._step_times) if self._step_times else MIN_PATIENCE_S
        return min(max(MIN_PATIENCE_S, PATIENCE_STEPS * usual_s), MAX_PATIENCE_S)

    def find_lost(self, now: float) -> tuple[tuple[int, ...], str] | None:
        """Who is lost, and how that was noticed; None while the group is taken to be whole."""
        if self._failed_s is not None:
            return self._find_dead(now)
        absent = tuple(worker for worker, at in self._away.items() if now - at > GRACE_S)
        if absent and not self._has_stepped and len(absent) < len(self._heard_s):
            # Nobody can say that an exchange failed: the others still wait for it to come.
            names = ", ".join(str(worker) for worker in sorted(absent))
            return (
                absent,
                f"worker {names} is gone: its connection ended before the group's first step",
            )
        since_s = now - self._progress_s
        silent = tuple(worker for worker, at in self._heard_s.items() if now - at > self.patience_s)
        if silent and since_s > self.patience_s and len(silent) < len(self._heard_s):
            names = ", ".join(str(worker) for worker in silent)
            return silent, (
                f"worker {names} silent for more than {self.patience_s:.1f} s while the others wait "
                f"(no step for {since_s:.1f} s)"
            )
        return None

    def _find_dead(self, now: float) -> tuple[tuple[int, ...], str] | None:
        assert self._failed_s is not None
        dead = tuple(worker for worker in self._away if worker not in self._failed)
        if dead:
            names = ", ".join(str(worker) for worker in sorted(dead))
            return dead, f"worker {names} is gone: its connection ended and an exchange failed"
        # Everybody may be well: a link that broke for a moment. Wait a little, then try again.
        if now - self._failed_s > GRACE_S or len(self._failed) == len(self._heard_s):
            worker, error = next(iter(self._failed.items()))
            return (), f"worker {worker} reports a failed exchange, nobody is missing ({error})"
        return None
