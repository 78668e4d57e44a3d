# SPDX-License-Identifier: Apache-2.0
"""Cuts a loop into chunks, on request: contiguous, in order, nothing lost, nothing twice."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gangline.scheduling.chunks import Chunk

if TYPE_CHECKING:
    from gangline.scheduling.chunks import Scheme


class Partitioner:
    """The items start … start + total − 1. It has no lock: who shares it between threads brings one."""

    def __init__(self, total: int, scheme: Scheme, *, start: int = 0, queue: int = 0) -> None:
        self._next = start
        self._stop = start + total
        self._scheme = scheme
        self._queue = queue
        self._returned: deque[Chunk] = deque()

    @property
    def remaining(self) -> int:
        """How many items are not handed out, those that were put back included."""
        return self._stop - self._next + sum(chunk.size for chunk in self._returned)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to hand out."""
        return self._next == self._stop and not self._returned

    def take(self, worker: int) -> Chunk | None:
        """The next chunk for `worker`; None when nothing is left. What was put back goes first."""
        if self._returned:
            return self._returned.popleft()
        left = self._stop - self._next
        if left == 0:
            return None
        size = min(max(self._scheme.next_size(worker, left), 1), left)
        chunk = Chunk(self._next, self._next + size, self._queue)
        self._next = chunk.stop
        return chunk

    def put_back(self, chunk: Chunk) -> None:
        """`chunk`, or what is left of it, will not be done by who took it: somebody else gets it."""
        if chunk.size > 0:
            self._returned.append(chunk)

    def switch(self, scheme: Scheme) -> None:
        """From now on `scheme`, made for what remains, says how large chunks are."""
        self._scheme = scheme

    def finished(
        self, worker: int, chunk: Chunk, seconds: float, *, overhead_s: float = 0.0
    ) -> None:
        """`worker` has done `chunk`, so that adaptive schemes learn."""
        self._scheme.finished(worker, chunk.size, seconds, overhead_s)
