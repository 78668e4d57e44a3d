# SPDX-License-Identifier: Apache-2.0
"""A machine that is about to end: its workers leave the job politely before it does.

Where the job's coordinator is on this machine nobody can go on for long: all members leave, wherever
they are, and the last one keeps a checkpoint first, if the script has a folder for them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gangline.engines.ending.notice import NoticeWatch
from gangline.spec.machines.notice import SIGTERM

if TYPE_CHECKING:
    from gangline.engines.beyond import Beyond
    from gangline.engines.engine import Engine
    from gangline.engines.supervision import StopRequest, Watcher
    from gangline.spec.config import SurvivalConfig

_MARGIN_S = 2.0
"""So long before the deadline, workers that have not left are ended."""


class Departing:
    """Whether this machine is about to end, and how long its workers still have."""

    def __init__(
        self,
        survival: SurvivalConfig,
        engine: Engine,
        *,
        watcher: Watcher,
        beyond: Beyond,
        request: StopRequest,
    ) -> None:
        self._engine = engine
        self._watcher = watcher
        self._beyond = beyond
        self._request = request
        self._notice_s = survival.notice_s
        self._watch = NoticeWatch(survival.notices)
        self._ends_s: float | None = None
        self.reason = ""
        """What said so; empty: nothing has."""
        request.is_term_a_notice = SIGTERM in survival.notices

    def look(self) -> None:
        """Has the workers leave when it is time."""
        if self.reason:
            return
        self.reason = "the launcher got SIGTERM" if self._request.is_noticed else self._watch.found
        if not self.reason:
            return
        self._ends_s = time.monotonic() + self._notice_s - min(_MARGIN_S, self._notice_s / 4)
        told = (
            f"this machine ends in {self._notice_s:g} s ({self.reason}): its workers leave the job"
        )
        self._watcher.note("notice", told, deadline_s=self._notice_s)
        if self._beyond.can_leave:
            self._beyond.depart()
            self._engine.ask_to_end()

    @property
    def is_over(self) -> bool:
        """Whether there is no time left."""
        return self._ends_s is not None and time.monotonic() >= self._ends_s

    def close(self) -> None:
        """Looks no more."""
        self._watch.close()
