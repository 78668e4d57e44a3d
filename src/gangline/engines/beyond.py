# SPDX-License-Identifier: Apache-2.0
"""What a launcher knows of its job beyond its own processes: whether it is over, whoever trains it.

Workers may have joined from elsewhere, and may go on when all that the launcher started have left. The
coordinator knows of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from gangline.eventlog import log_path
from gangline.eventlog.parts import newest_part
from gangline.files.plainfile import open_plain
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gangline.engines.coordination import Coordination
    from gangline.engines.job import Job

LOST_S = 60.0
"""Workers that nobody has heard of for so long will not train the job to its end."""
ENDED_S = 10.0
"""The same, where the job is trained to its end, and they had only to say goodbye."""
SENT_S = 30.0
"""How long machines that joined may take to send the rest of their event logs."""
CUT_SHORT_S = 5.0
"""The same, where the job is ended early."""
_TAIL_BYTES = 1 << 16


class Beyond:
    """The rest of a job; of a job that is run elsewhere, nothing is known."""

    def __init__(self, job: Job, coordination: Coordination) -> None:
        self._job = job
        self._coordination = coordination
        self._others: tuple[int, ...] = ()
        self._silent_s = 0.0

    @property
    def is_elsewhere(self) -> bool:
        """Whether the job is another launcher's, which knows when it is over."""
        return self._job.coordinator is not None

    @property
    def is_finished(self) -> bool:
        """Whether a member that was started elsewhere has come to the end of its script."""
        return any(worker >= self._num_own for worker in self._coordination.finished)

    @property
    def _num_own(self) -> int:
        """The launcher's own workers have the first numbers, with those that replace them."""
        return self._job.config.num_own

    @property
    def main(self) -> int:
        """The worker that prints and saves; -1: that is not known."""
        standing = self._coordination.standing
        return -1 if standing is None else standing.main

    @property
    def come(self) -> int:
        """How many workers are here, before anybody trains."""
        standing = self._coordination.standing
        return 0 if standing is None else standing.come

    @property
    def others(self) -> tuple[int, ...]:
        """The members that were started elsewhere, as far as is known."""
        standing = self._coordination.standing
        if standing is not None:  # else the coordinator is just being started again
            self._others = tuple(one for one in standing.present if one >= self._num_own)
            self._silent_s = standing.silent_s
        return self._others

    @property
    def is_ending(self) -> bool:
        """Whether an operator has ordered the end of the job."""
        return self._coordination.is_ending

    @property
    def is_awaited(self) -> bool:
        """Whether somebody else trains the job, or must still say that it is done."""
        limit_s = ENDED_S if self._coordination.finished else LOST_S
        return bool(self.others) and self._silent_s < limit_s

    def explain(self) -> str:
        """Why nobody is waited for any more."""
        if not self.others:
            return "nobody is left who trains it"
        names = ", ".join(str(one) for one in self.others)
        return f"nothing was heard of worker {names}, which joined it, for {self._silent_s:.0f} s"

    def has_left(self, worker: int) -> bool:
        """Whether a worker that ended well had been asked to leave, and did."""
        if self.is_elsewhere:
            return False
        path = newest_part(log_path(self._job.run_dir, f"worker {worker}"))
        return any(event.what == "leave" for event in _last_decisions(path))

    @property
    def can_leave(self) -> bool:
        """Whether the transport lets workers leave while others go on."""
        return (self._job.config.exchange.transport or "wire").startswith(("wire", "mpi"))

    def depart(self) -> None:
        """This machine is about to end, and with it the job's coordinator, unless that is elsewhere."""
        self._coordination.depart()

    def dissolve(self, reason: str) -> None:
        """The job is ended here: who joined it is told."""
        self._coordination.dissolve(reason)

    def await_dissolved(self) -> None:
        """Waits a moment until they have been told, if they are to be told."""
        self._coordination.await_dissolved()

    def await_sent(self, is_hurried: Callable[[], bool], *, is_done: bool) -> None:
        """Waits until machines that joined have sent their event logs, for a limited time."""
        limit_s = SENT_S if is_done else CUT_SHORT_S
        self._coordination.await_sent(is_hurried, limit_s=limit_s)


def _last_decisions(path: Path) -> list[Decision]:
    """The decisions among the last events of a log; none where there is no such log."""
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(msgspec.json.decode(line, type=Decision))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # another kind of event, or a part of a line
    return found
