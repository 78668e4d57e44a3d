# SPDX-License-Identifier: Apache-2.0
"""What is known of each worker; what thousands report is written down when somebody asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.coordinator.reports.bunch import Bunch
    from gangline.protocol.status import WorkerStatus


class WorkerTable(Mapping[int, "WorkerStatus"]):
    """The workers by number."""

    def __init__(self, known: dict[int, WorkerStatus]) -> None:
        self._known = known
        self._bunch: Bunch | None = None
        """The last reports of many, some of which may not be written down yet."""
        self._is_open = np.zeros(0, dtype=bool)
        """Which of them are not."""
        self._rows: dict[int, int] = {}
        """Where each of its workers is in it; empty before anybody has asked."""

    def note(self, worker: int, *, step: int, samples: int, compute_s: float) -> None:
        """A worker has reported a step."""
        _write(self[worker], step, samples, compute_s)

    def note_many(self, bunch: Bunch) -> None:
        """Many workers, each of them known, have reported a step."""
        before = self._bunch
        if before is None or before.given.workers != bunch.given.workers:
            self._settle_all()
            self._rows = {}
        self._bunch = bunch
        self._is_open = np.ones(len(bunch.workers), dtype=bool)

    def __getitem__(self, worker: int) -> WorkerStatus:
        if self._bunch is not None:
            self._settle(self._bunch, worker)
        return self._known[worker]

    def __setitem__(self, worker: int, status: WorkerStatus) -> None:
        if self._bunch is not None and worker in self._known:
            self._settle(self._bunch, worker)
        self._known[worker] = status

    def __iter__(self) -> Iterator[int]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, worker: object) -> bool:
        return worker in self._known

    def _settle(self, bunch: Bunch, worker: int) -> None:
        if not self._rows:
            self._rows = {one: row for row, one in enumerate(bunch.workers.tolist())}
        row = self._rows.get(worker)
        if row is not None and self._is_open[row]:
            self._is_open[row] = False
            samples, compute_s = int(bunch.samples[row]), float(bunch.compute_s[row])
            _write(self._known[worker], bunch.given.step, samples, compute_s)

    def _settle_all(self) -> None:
        if self._bunch is not None:
            for row in np.flatnonzero(self._is_open).tolist():
                self._settle(self._bunch, int(self._bunch.workers[row]))


_LASTING = frozenset({"leaving", "lost", "spare"})
"""Of who is not with the others any more: a report of before may still come."""


def _write(status: WorkerStatus, step: int, samples: int, compute_s: float) -> None:
    if status.state not in _LASTING:
        status.state = "training"
    status.step, status.samples, status.compute_s = step, samples, compute_s
