# SPDX-License-Identifier: Apache-2.0
"""Hands out the chunks of a loop to threads, exactly once, whoever of them is lost."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gangline.mapreduce.work import rows_text
from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from gangline.mapreduce.arguments import Settings
    from gangline.mapreduce.selecting import Queues
    from gangline.scheduling import Chunk

MAX_LOSSES = 3
"""A chunk that has ended so many processes is not given to another one."""
MAX_REPLACED = 100
"""How many processes of a loop are replaced."""


class Dispatch:
    """The queues of a loop behind one lock."""

    def __init__(self, settings: Settings, queues: Queues) -> None:
        self.queues = queues
        self.lost: dict[int, str] = {}
        self._workers = self._num_left = settings.workers
        self._num_replaced = 0
        self._is_learning = settings.choice is None or settings.choice.scheme.is_learning
        self._may_lose = settings.where == "processes"
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._num_out = 0
        self._losses: dict[int, int] = {}
        self._is_stopped = False
        self.error: BaseException | None = None

    def next(
        self, worker: int, done: Chunk | None, seconds: float = 0.0, overhead_s: float = 0.0
    ) -> Chunk | None:
        """A worker's next chunk, after it has done one in so many seconds; None: nothing is left.

        While processes have chunks that they may lose, who has nothing to do waits here.
        """
        with self._lock:
            if done is not None:
                self._num_out -= 1
                if self._is_learning:
                    self.queues.finished(worker, done, seconds, overhead_s=overhead_s)
            while not self._is_stopped:
                chunk = self.queues.take(worker)
                if chunk is not None:
                    self._num_out += 1
                    return chunk
                if not self._may_lose:
                    return None
                if not self._num_out:
                    self._changed.notify_all()
                    return None
                self._changed.wait()
            return None

    @property
    def is_over(self) -> bool:
        """Whether all is done, or the loop was ended."""
        with self._lock:
            return self._is_stopped or not (self._num_out or self.queues.remaining)

    def is_deadly(self, chunk: Chunk) -> bool:
        """A process was lost with this chunk: whether it has ended too many of them."""
        with self._lock:
            self._losses[chunk.start] = self._losses.get(chunk.start, 0) + 1
            return self._losses[chunk.start] >= MAX_LOSSES

    def lose(self, worker: int, chunk: Chunk | None, why: str, *, is_done: bool = False) -> bool:
        """A worker's process is gone: somebody does its chunk, unless that counts as done.

        Returns whether another process is to take its place. One that was lost before it was ready
        is not replaced. Without anybody left the loop fails.
        """
        with self._lock:
            self.lost[worker] = why
            if chunk is not None:
                self._num_out -= 1
                if not is_done:
                    self.queues.put_back(chunk)
            if chunk is not None and self.queues.remaining and not self._is_stopped:
                self._num_replaced += 1
                if self._num_replaced <= MAX_REPLACED:
                    self._changed.notify_all()
                    return True
            self._num_left -= 1
            if self._num_left == 0 and (self._num_out or self.queues.remaining):
                had = "" if chunk is None else f", which had {rows_text(chunk.start, chunk.stop)}"
                self._fail(
                    LaunchError(
                        f"all {self._workers} processes are lost; the last one, {worker}{had}: {why}"
                    )
                )
            self._changed.notify_all()
            return False

    def fail(self, error: BaseException) -> None:
        """Ends the loop by an error, the first one if there are several."""
        with self._lock:
            self._fail(error)

    def stop(self) -> None:
        """Nobody is given anything any more."""
        with self._lock:
            self._is_stopped = True
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self._is_stopped = True
        self._changed.notify_all()
