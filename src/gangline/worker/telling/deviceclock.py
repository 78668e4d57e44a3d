# SPDX-License-Identifier: Apache-2.0
"""What a device computes for a step, without waiting for it.

The main thread of a worker that is alone runs ahead of its GPU, so its own clock does not tell what a
step costs. Marks in the GPU's queue do, when the GPU has passed them: a step or two later. Until then
the last step that is known, and had as many samples, stands for the one that is told.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.cuda import Event


class _Step(NamedTuple):
    """A step that the device may still be at."""

    size: int | None
    samples: int
    spans: list[tuple[Event, Event]]

    @property
    def seconds_per_sample(self) -> float:
        elapsed_ms = sum(begin.elapsed_time(end) for begin, end in self.spans)
        return float(elapsed_ms) / 1000 / max(1, self.samples)


class DeviceClock:
    """A stopwatch in a device's queue."""

    def __init__(self, mark: Callable[[], Event | None]) -> None:
        """`mark` marks where the queue is; None where the device is waited for in every step."""
        self._mark = mark
        self._begin: Event | None = None
        self._spans: list[tuple[Event, Event]] = []
        self._pending: deque[_Step] = deque()
        self._known: tuple[int | None, float] | None = None
        """Of the last step that the device is done with: its size, and seconds per sample."""

    def begin(self) -> None:
        """What is queued from here on is computing."""
        self._begin = self._mark()

    def end(self) -> None:
        """Up to here it was."""
        begin, self._begin = self._begin, self._mark()
        if begin is not None and self._begin is not None:
            self._spans.append((begin, self._begin))

    def take(self, samples: int, *, is_drawn: bool) -> float | None:
        """Seconds for the step that is over; None where the device was waited for in it.

        `is_drawn`: its size is its own, and steps are compared by the sample.
        """
        spans, self._spans = self._spans, []
        if not spans:
            self._pending.clear()
            self._known = None
            return None
        size = None if is_drawn else samples
        self._pending.append(_Step(size, samples, spans))
        self._read()
        if self._known is None or self._known[0] != size:
            spans[-1][1].synchronize()
            self._read()
        assert self._known is not None
        return self._known[1] * max(1, samples)

    def _read(self) -> None:
        """Takes up the steps that the device is done with."""
        while self._pending and self._pending[0].spans[-1][1].query():  # type: ignore[no-untyped-call]
            step = self._pending.popleft()
            self._known = step.size, step.seconds_per_sample
