# SPDX-License-Identifier: Apache-2.0
"""The queues of a loop whose scheme and grain may change while it runs; their layout stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.scheduling.measures import LoopMeter
from gangline.scheduling.queues import WorkQueues
from gangline.scheduling.selection import rules
from gangline.scheduling.selection.advice import Advice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gangline.scheduling.choice import Choice
    from gangline.scheduling.chunks import Chunk
    from gangline.scheduling.measures import LoopReport
    from gangline.scheduling.speeds import Speeds

CHECKED_AFTER = 8
"""Chunks per worker until a loop is looked at for the first time; then as many again, twice, …"""
DEAR_PROBE = 1 / 3
"""Where getting the first chunks takes this part of the time, no more of them are needed."""


class TunedQueues:
    """To be used as `WorkQueues` are."""

    def __init__(
        self,
        advice: Advice,
        *,
        total: int,
        workers: int,
        groups: Sequence[int] | None,
        speeds: Speeds,
        is_probe: bool,
        tell: Callable[[Advice], None],
        seed: int = 0,
    ) -> None:
        weights = [max(speeds.weight(one), 1e-3) for one in range(workers)]
        self.advice = advice
        self.begun = advice.choice
        """What held at the beginning."""
        self.total = total
        self._workers = workers
        self._speeds = speeds
        self._tell = tell
        self._is_probe = is_probe
        self._meter = LoopMeter()
        self._next_check = CHECKED_AFTER * workers
        self._queues = WorkQueues(
            advice.choice,
            total=total,
            workers=workers,
            groups=groups,
            weights=weights if speeds.workers else None,
            speeds=speeds,
            seed=seed,
        )

    @property
    def choice(self) -> Choice:
        """What holds now."""
        return self.advice.choice

    @property
    def remaining(self) -> int:
        """How many items are not handed out."""
        return self._queues.remaining

    def report(self) -> LoopReport:
        """What is done so far, in numbers."""
        return self._meter.report(workers=self._workers)

    def take(self, worker: int) -> Chunk | None:
        """The next chunk for `worker`: of its own queue, or stolen; None when all are empty."""
        return self._queues.take(worker)

    def is_stolen(self, worker: int, chunk: Chunk) -> bool:
        """Whether the chunk came from another's queue."""
        return self._queues.is_stolen(worker, chunk)

    def is_near(self, worker: int, chunk: Chunk) -> bool:
        """Whether the chunk came from a queue of the worker's own group."""
        return self._queues.is_near(worker, chunk)

    def put_back(self, chunk: Chunk) -> None:
        """`chunk`, or what is left of it, will not be done by who took it: somebody else gets it."""
        self._queues.put_back(chunk)

    def finished(
        self, worker: int, chunk: Chunk, seconds: float, *, overhead_s: float = 0.0
    ) -> None:
        """`worker` has done `chunk`; now and then this leads to another scheme for what remains."""
        self._queues.finished(worker, chunk, seconds, overhead_s=overhead_s)
        is_stolen = self.is_stolen(worker, chunk)
        self._meter.add(worker, chunk.size, seconds, overhead_s=overhead_s, is_stolen=is_stolen)
        if not self.choice.scheme.shares_speeds:
            self._speeds.report(worker, chunk.size, seconds + overhead_s)
        if self._is_probe:
            self._end_probe()
        elif self._meter.chunks >= self._next_check:
            self._next_check *= 2
            self._check()

    def _end_probe(self) -> None:
        everybody = self._meter.workers == self._workers
        report = self.report()
        is_dear = self._meter.chunks > 1 and report.overhead_share > DEAR_PROBE
        if not everybody and not is_dear and self.remaining * 4 > self.total * 3:
            return
        self._is_probe = False
        choice, why = rules.pick(report, self.remaining, self._workers, [self.choice.layout])
        self._switch(choice, why, report)

    def _check(self) -> None:
        report = self.report()
        found = rules.rethink(
            report,
            self.choice,
            remaining=self.remaining,
            total=self.total,
            workers=self._workers,
        )
        if found is not None:
            self._switch(*found, report)

    def _switch(self, choice: Choice, why: str, report: LoopReport) -> None:
        if self.remaining == 0:
            return
        self.advice = Advice(
            choice=choice,
            reason=why,
            numbers={**report.numbers(), "remaining": float(self.remaining)},
            loop=self.advice.loop,
            is_within=True,
        )
        self._queues.switch(choice)
        self._tell(self.advice)
