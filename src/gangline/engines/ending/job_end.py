# SPDX-License-Identifier: Apache-2.0
"""Whether a job has come to its end, and who keeps its launcher from ending with it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gangline.engines.beyond import Beyond
    from gangline.engines.engine import Engine
    from gangline.engines.supervision import Watcher

STOPPED_GRACE_S = 5.0
"""How long a worker may stay stopped (SIGSTOP) when the job is over but for it."""


class JobEnd:
    """The end of one job."""

    def __init__(self, engine: Engine, watcher: Watcher, beyond: Beyond) -> None:
        self._engine = engine
        self._watcher = watcher
        self._beyond = beyond
        self._left: dict[int, bool] = {}
        self._stopped_since_s: float | None = None
        self._is_told = False

    @property
    def is_finished(self) -> bool:
        """Whether a worker saw the job to its end."""
        well = [one for one in self._engine.results if one.exit_code == 0 and not one.stopped]
        return self._beyond.is_finished or any(not self._has_left(one.worker) for one in well)

    @property
    def is_ordered(self) -> bool:
        """Whether an operator has ordered it."""
        return self._beyond.is_ending

    def is_awaiting_others(self) -> bool:
        """Whether workers that were started elsewhere still train the job."""
        if not self._beyond.is_awaited:
            return False
        if not self._is_told:
            self._is_told = True
            names = ", ".join(str(one) for one in self._beyond.others)
            reason = f"all workers that were started here have ended; worker {names} goes on"
            self._watcher.note("await_others", reason, others=len(self._beyond.others))
        return True

    def end_stopped(self) -> None:
        """Ends workers that stay stopped when the job is over but for them."""
        running = self._engine.running
        is_over = bool(running) and self.is_finished and not self._beyond.is_awaited
        if not is_over or not all(self._engine.is_stopped(worker) for worker in running):
            self._stopped_since_s = None
            return
        now = time.monotonic()
        if self._stopped_since_s is None:
            self._stopped_since_s = now
        if now - self._stopped_since_s < STOPPED_GRACE_S:
            return
        for worker in running:
            stayed = f"stayed stopped for {STOPPED_GRACE_S:g} s when the job was over"
            self._engine.kill(worker, note=f"{stayed}, and was ended")
            self._watcher.note("end_stopped", f"worker {worker} {stayed}: ended", worker=worker)

    def explain(self) -> str:
        """Why the job is not finished, though nobody made it fail."""
        left = [str(one.worker) for one in self._engine.results if self._has_left(one.worker)]
        who = f"worker {', '.join(left)} left, and " if left else ""
        who = f"an operator ended it; {who}" if self.is_ordered else who
        return f"the job is not trained to its end: {who}{self._beyond.explain()}"

    def _has_left(self, worker: int) -> bool:
        if worker not in self._left:
            self._left[worker] = self._beyond.has_left(worker)
        return self._left[worker]
