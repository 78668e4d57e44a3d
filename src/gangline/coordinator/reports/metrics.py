# SPDX-License-Identifier: Apache-2.0
"""What workers have measured of themselves: told before whatever is decided next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gangline.control import MetricsMeasured

if TYPE_CHECKING:
    from gangline.protocol.messages import Metrics


class OwnMetrics:
    """The newest of every worker."""

    def __init__(self) -> None:
        self._known: dict[int, Metrics] = {}
        self._has_news = False

    def note(self, worker: int, metrics: Metrics) -> None:
        """A worker says what it has measured."""
        self._known[worker] = metrics
        self._has_news = True

    def take(self, members: tuple[int, ...]) -> MetricsMeasured | None:
        """What all members have measured of themselves, if there is news of it."""
        if not self._has_news or not members or not {*members} <= {*self._known}:
            return None
        self._has_news = False
        rows = [self._known[member] for member in members]
        return MetricsMeasured(
            workers=members,
            operations_per_s=np.array([row.operations_per_s for row in rows]),
            memory_bytes=np.array([row.memory_bytes for row in rows]),
            latency_s=np.array([row.latency_s for row in rows]),
        )
