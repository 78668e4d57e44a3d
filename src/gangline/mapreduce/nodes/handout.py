# SPDX-License-Identifier: Apache-2.0
"""Which node does which rows of a loop: handed out on request, and again where a node is lost."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from gangline.scheduling import Chunk, WorkQueues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.scheduling import Choice

Range = tuple[int, int]
"""The rows start … stop − 1."""


def missing_ranges(total: int, done: Sequence[Range]) -> list[Range]:
    """The rows of 0 … total − 1 that are in none of `done`."""
    found, at = [], 0
    for start, stop in [*sorted(done), (total, total)]:
        if start > at:
            found.append((at, start))
        at = max(at, stop)
    return found


class Handout:
    """Hands out ranges of rows to nodes, which may be lost with all that they have done.

    The rows to be done are counted through, whatever lies between them; that is what is cut.
    """

    def __init__(self, ranges: Sequence[Range], choice: Choice, *, nodes: int) -> None:
        self._ranges = ranges
        self._queues = WorkQueues(
            choice, total=sum(stop - start for start, stop in ranges), workers=nodes
        )
        self._lock = threading.Lock()
        self._taken: dict[int, list[Chunk]] = {node: [] for node in range(nodes)}
        self._busy: dict[int, float] = {}
        self._is_stopped = False

    @property
    def is_over(self) -> bool:
        """Whether nothing is left, and nobody has something that may come back."""
        with self._lock:
            return self._is_over()

    def next(self, node: int) -> Range | None:
        """What a node does next, after it has done what it had; None: nothing just now."""
        with self._lock:
            began = self._busy.pop(node, None)
            if began is not None:
                done = self._taken[node][-1]
                self._queues.finished(node, done, time.monotonic() - began)
            chunk = None if self._is_stopped else self._queues.take(node)
            if chunk is None:
                return None
            place, rows, size = self._place(chunk.start)
            if chunk.size > size:
                self._queues.put_back(chunk._replace(start=chunk.start + size))
                chunk = chunk._replace(stop=chunk.start + size)
            self._taken[node].append(chunk)
            self._busy[node] = time.monotonic()
            start = self._ranges[place][0] + rows
            return start, start + chunk.size

    def lose(self, node: int) -> None:
        """A node is gone, and its results with it: others do all that it was given."""
        with self._lock:
            self._busy.pop(node, None)
            for chunk in self._taken[node]:
                self._queues.put_back(chunk)
            self._taken[node] = []

    def stop(self) -> None:
        """Nobody is given anything any more."""
        with self._lock:
            self._is_stopped = True

    def _is_over(self) -> bool:
        return not self._busy and (self._is_stopped or self._queues.remaining == 0)

    def _place(self, start: int) -> tuple[int, int, int]:
        """In which range a counted row lies, how far inside, and how many rows follow there."""
        for place, (first, stop) in enumerate(self._ranges):
            if start < stop - first:
                return place, start, stop - first - start
            start -= stop - first
        raise AssertionError("a chunk lies within the ranges")
