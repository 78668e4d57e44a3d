# SPDX-License-Identifier: Apache-2.0
"""The end of a job: members whose scripts are over wait a moment for those that were put out.

Who comes back then is taken in once more, and copies the final state: it does not end with an old one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

HOME_S = 5.0
"""Who was put out so long ago is not waited for any more."""


AWAY_S = 1.0
"""Who wakes after a while takes its line for dead, and connects anew: it may be away for so long."""


class Homecoming:
    """Who is done, in which group, and who was put out when."""

    def __init__(self) -> None:
        self._done: dict[int, int] = {}
        self._lost_s: dict[int, float] = {}
        self._away_s: dict[int, float] = {}

    def finish(self, worker: int, group: int) -> None:
        """A member's script is over; it is in this group."""
        self._done[worker] = group

    def lose(self, workers: Iterable[int], now: float) -> None:
        """These were put out."""
        for worker in workers:
            self._lost_s[worker] = now

    def hang_up(self, worker: int, now: float) -> None:
        """A worker's connection is gone."""
        self._away_s[worker] = now

    def is_reconnecting(self, worker: int, now: float) -> bool:
        """Whether a worker's connection went just now, so that it may be on its way back."""
        return now - self._away_s.get(worker, now - 2 * AWAY_S) <= AWAY_S

    def is_awaited(self, worker: int, now: float) -> bool:
        """Whether a worker was put out, and may be back in a moment."""
        return now - self._lost_s.get(worker, now - 2 * HOME_S) <= HOME_S

    @property
    def has_begun(self) -> bool:
        """Whether somebody is done, and waits."""
        return bool(self._done)

    def is_entering(self, members: Iterable[int], group: int) -> bool:
        """Whether one of these members is done, and still has to enter this group."""
        return any(self._done.get(member, group) < group for member in members)

    def leave(self, worker: int) -> None:
        """A worker waits no longer."""
        self._done.pop(worker, None)

    def release(self) -> list[int]:
        """Those who are done need not wait any more."""
        released, self._done = sorted(self._done), {}
        return released
