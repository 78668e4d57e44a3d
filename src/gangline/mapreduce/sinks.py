# SPDX-License-Identifier: Apache-2.0
"""Where the results of chunks go while a loop runs. Each worker has a place of its own: no lock."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

from gangline.mapreduce.combining import FOLDED, Fold, fold_all, join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gangline.mapreduce.arguments import Settings
    from gangline.mapreduce.result import Part

    How = str | Callable[[Any, Any], Any]


class Kept:
    """Every chunk's result, until all are there."""

    def __init__(self, how: How, *, workers: int, is_folded: bool) -> None:
        self._how = how
        self._is_folded = is_folded
        self._parts: list[list[Part]] = [[] for _ in range(workers)]

    def put(self, worker: int, part: Part) -> None:
        """A chunk was done."""
        self._parts[worker].append(part)

    def value(self) -> Any:
        """All of them as one, in the order of their rows."""
        parts = [part for some in self._parts for part in some]
        parts.sort(key=lambda part: part.start)
        if self._is_folded:
            return fold_all(self._how, parts)
        assert isinstance(self._how, str)
        return join(self._how, parts)


class Folded:
    """One result for each worker, into which it puts every further one."""

    def __init__(self, how: How, *, workers: int) -> None:
        self._how = how
        self._fold = Fold(how)
        self._totals: list[Part | None] = [None] * workers

    def put(self, worker: int, part: Part) -> None:
        """A chunk was done."""
        self._totals[worker] = self._fold(self._totals[worker], part)

    def value(self) -> Any:
        """The workers' results as one, in the order of the workers."""
        return fold_all(self._how, [part for part in self._totals if part is not None])


def sink_for(how: How, settings: Settings) -> Folded | Kept:
    """Where results go that are combined in this way."""
    is_folded = not isinstance(how, str) or how in FOLDED
    if is_folded and not settings.ordered:
        return Folded(how, workers=settings.workers)
    return Kept(how, workers=settings.workers, is_folded=is_folded)


class Stream:
    """Results as they come, for one reader. Who is far ahead of the reader waits for it."""

    def __init__(self, *, ahead: int) -> None:
        self._queue: queue.Queue[Part] = queue.Queue(ahead)
        self._is_open = True

    def put(self, worker: int, part: Part) -> None:
        """A chunk was done. Returns when there is room for it, or nobody reads any more."""
        while self._is_open:
            try:
                self._queue.put(part, timeout=0.1)
            except queue.Full:
                continue
            return

    def take(self, limit_s: float) -> Part | None:
        """The next result; None: none has come in this time."""
        try:
            return self._queue.get(timeout=limit_s)
        except queue.Empty:
            return None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is there to be read."""
        return self._queue.empty()

    def close(self) -> None:
        """Nobody reads any more."""
        self._is_open = False


def in_order(parts: Iterator[Part], gaps: Callable[[], dict[int, int]]) -> Iterator[Part]:
    """The same in the order of their rows. `gaps`: first and last row of what will not come."""
    waiting: dict[int, Part] = {}
    start = 0
    for part in parts:
        waiting[part.start] = part
        while True:
            failed = {} if start in waiting else gaps()
            while start in failed:
                start = failed[start]
            if start not in waiting:
                break
            yield waiting[start]
            start = waiting.pop(start).stop
    for key in sorted(waiting):  # behind rows that have failed last
        yield waiting[key]
