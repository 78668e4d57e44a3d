# SPDX-License-Identifier: Apache-2.0
"""Queues of chunks: workers take from their own first, then steal, one chunk at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.scheduling.choice import Layout
from gangline.scheduling.partition import Partitioner
from gangline.scheduling.victims import check_picked
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.scheduling.choice import Choice
    from gangline.scheduling.chunks import Chunk, Scheme
    from gangline.scheduling.speeds import Speeds
    from gangline.scheduling.timing import Timing


class WorkQueues:
    """One loop in its queues. It has no lock: who shares it between threads brings one."""

    def __init__(
        self,
        choice: Choice,
        *,
        total: int,
        workers: int,
        groups: Sequence[int] | None = None,
        weights: Sequence[float] | None = None,
        timing: Timing | None = None,
        speeds: Speeds | None = None,
        seed: int = 0,
    ) -> None:
        """`groups`: the group of each worker; all are in one where it is not given."""
        self._choice = choice
        self._victims = choice.victims.make(seed)
        self.own, self.near = _arrange(choice.layout, _checked(groups, workers))
        """Of each worker its queue; of each queue those of the same group, itself included."""

        def make(items: int) -> Scheme:
            now = self._choice
            return now.scheme.make(
                items, workers, grain=now.grain, weights=weights, timing=timing, speeds=speeds
            )

        self._make = make
        count = len(self.near)
        if choice.pre_partition or count == 1:
            blocks = cut_blocks(total, _powers(self.own, weights, count))
            self._queues = [
                Partitioner(stop - start, make(stop - start), start=start, queue=queue)
                for queue, (start, stop) in enumerate(blocks)
            ]
        else:
            self._queues = _dealt(total, make(total), count)

    @property
    def remaining(self) -> int:
        """How many items are not handed out."""
        return sum(queue.remaining for queue in self._queues)

    @property
    def choice(self) -> Choice:
        """How the loop is handed out now."""
        return self._choice

    def switch(self, choice: Choice) -> None:
        """From now on another scheme and grain; the queues stay as they are. Raises UsageError."""
        if choice.layout != self._choice.layout:
            raise UsageError(
                f"the layout {self._choice.layout} cannot become {choice.layout} within a loop"
            )
        if not self._choice.pre_partition:
            raise UsageError("chunks that were dealt beforehand cannot be cut anew within a loop")
        self._choice = choice
        for queue in self._queues:
            queue.switch(self._make(queue.remaining))

    def take(self, worker: int) -> Chunk | None:
        """The next chunk for `worker`: of its own queue, or stolen; None when all are empty."""
        own = self.own[worker]
        if not self._queues[own].is_empty:
            return self._queues[own].take(worker)
        near, far = self._filled(own)
        if not near and not far:
            return None
        picked = self._victims.pick(worker, own, near, far)
        check_picked(picked, near, far, name=self._choice.victims.text)
        return self._queues[picked].take(worker)

    def is_stolen(self, worker: int, chunk: Chunk) -> bool:
        """Whether the chunk came from another's queue."""
        return chunk.queue != self.own[worker]

    def is_near(self, worker: int, chunk: Chunk) -> bool:
        """Whether the chunk came from a queue of the worker's own group."""
        return chunk.queue in self.near[self.own[worker]]

    def put_back(self, chunk: Chunk) -> None:
        """`chunk`, or what is left of it, will not be done by who took it: somebody else gets it."""
        self._queues[chunk.queue].put_back(chunk)

    def finished(
        self, worker: int, chunk: Chunk, seconds: float, *, overhead_s: float = 0.0
    ) -> None:
        """`worker` has done `chunk`, so that the scheme of its queue learns."""
        self._queues[chunk.queue].finished(worker, chunk, seconds, overhead_s=overhead_s)

    def _filled(self, own: int) -> tuple[list[int], list[int]]:
        count = len(self._queues)
        around = ((own + step) % count for step in range(1, count))
        filled = [queue for queue in around if not self._queues[queue].is_empty]
        near = [queue for queue in filled if queue in self.near[own]]
        return near, [queue for queue in filled if queue not in self.near[own]]


def cut_blocks(total: int, powers: Sequence[float]) -> list[tuple[int, int]]:
    """Contiguous blocks of 0 … total − 1 in proportion to `powers`, each a start and a stop."""
    blocks: list[tuple[int, int]] = []
    whole, so_far, start = sum(powers), 0.0, 0
    for power in powers:
        so_far += power
        stop = total if len(blocks) == len(powers) - 1 else round(total * so_far / whole)
        blocks.append((start, stop))
        start = stop
    return blocks


def _checked(groups: Sequence[int] | None, workers: int) -> list[int]:
    if groups is None:
        return [0] * workers
    if len(groups) != workers:
        raise UsageError(f"{len(groups)} groups for {workers} workers: give the group of each")
    return list(groups)


def _arrange(layout: Layout, groups: list[int]) -> tuple[list[int], list[frozenset[int]]]:
    workers = range(len(groups))
    match layout:
        case Layout.CENTRALIZED:
            return [0 for _ in workers], [frozenset({0})]
        case Layout.PERGROUP:
            places = {group: place for place, group in enumerate(dict.fromkeys(groups))}
            own = [places[group] for group in groups]
            return own, [frozenset({queue}) for queue in places.values()]
        case Layout.PERCPU:
            near = [frozenset(k for k in workers if groups[k] == groups[one]) for one in workers]
            return list(workers), near


def _powers(own: list[int], weights: Sequence[float] | None, count: int) -> list[float]:
    powers = [0.0] * count
    for worker, queue in enumerate(own):
        powers[queue] += 1.0 if weights is None else weights[worker]
    return powers


def _dealt(total: int, scheme: Scheme, count: int) -> list[Partitioner]:
    """All chunks, cut in order, chunk j in queue j mod Q."""
    queues = [Partitioner(0, scheme, queue=queue) for queue in range(count)]
    whole, number = Partitioner(total, scheme), 0
    while (chunk := whole.take(number % count)) is not None:
        queues[number % count].put_back(chunk._replace(queue=number % count))
        number += 1
    return queues
