# SPDX-License-Identifier: Apache-2.0
"""When the units of one step were ready, and when they were exchanged."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_UNITS = 500
"""So many are told of one step: of more, those whose exchange took longest."""

Row = tuple[int, float, float, float]
"""Unit, ready, begin and end, in seconds since the step's batch was handed out."""


class UnitSpans:
    """Filled by the thread that exchanges; read when the step is over, and nothing is under way."""

    def __init__(self) -> None:
        self._since_s = time.perf_counter()
        self._rows: list[Row] = []

    def now_s(self) -> float:
        """The time since the step's batch was handed out."""
        return time.perf_counter() - self._since_s

    @contextmanager
    def of(self, unit: int, *, ready_s: float) -> Iterator[None]:
        """The unit is exchanged inside."""
        begin_s = self.now_s()
        yield
        end_s = self.now_s()
        self._rows.append((unit, round(ready_s, 6), round(begin_s, 6), round(end_s, 6)))

    def rows(self) -> list[Row]:
        """What there is to tell, in the order in which it happened."""
        longest = sorted(self._rows, key=lambda row: row[2] - row[3])[:MAX_UNITS]
        return sorted(longest, key=lambda row: row[2:])
