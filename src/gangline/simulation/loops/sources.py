# SPDX-License-Identifier: Apache-2.0
"""Where simulated workers get chunks from: one level of queues, or two."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from gangline.scheduling import Chunk, WorkQueues

if TYPE_CHECKING:
    from gangline.scheduling import Choice
    from gangline.simulation.loops.crowd import Crowd, Overheads


class Grant(NamedTuple):
    """A chunk, and when its worker can begin with it."""

    chunk: Chunk
    begin_s: float
    is_stolen: bool


class Done(NamedTuple):
    """A chunk that was done, and when it was asked for, begun and ended."""

    chunk: Chunk
    asked_s: float
    begin_s: float
    end_s: float


class Queues(Protocol):
    """What queues must be able to do: `WorkQueues`, and those that pick their own scheme."""

    def take(self, worker: int) -> Chunk | None:
        """The next chunk for `worker`."""

    def finished(
        self, worker: int, chunk: Chunk, seconds: float, *, overhead_s: float = 0.0
    ) -> None:
        """`worker` has done `chunk`."""

    def is_stolen(self, worker: int, chunk: Chunk) -> bool:
        """Whether the chunk came from another's queue."""

    def is_near(self, worker: int, chunk: Chunk) -> bool:
        """Whether it came from a queue of the worker's group."""


class Source(Protocol):
    """Grants chunks in virtual time."""

    def take(self, worker: int, now: float) -> Grant | None:
        """The next chunk of `worker`, who asks at `now`; None when the loop is handed out."""

    def finished(self, worker: int, done: Done) -> None:
        """`worker` has done a chunk."""


class FlatSource:
    """One level: a queue serves one worker after the other, and stealing costs more."""

    def __init__(self, queues: Queues, overheads: Overheads) -> None:
        self._queues = queues
        self._overheads = overheads
        self._free_s: dict[int, float] = {}

    def take(self, worker: int, now: float) -> Grant | None:
        """The chunk, after those who asked its queue before."""
        chunk = self._queues.take(worker)
        if chunk is None:
            return None
        costs = self._overheads
        served = max(now, self._free_s.get(chunk.queue, 0.0)) + costs.queue_s
        self._free_s[chunk.queue] = served
        begin = served + costs.chunk_s
        is_stolen = self._queues.is_stolen(worker, chunk)
        if is_stolen:
            is_near = self._queues.is_near(worker, chunk)
            begin += costs.steal_s if is_near else costs.far_steal_s
        return Grant(chunk, begin, is_stolen)

    def finished(self, worker: int, done: Done) -> None:
        """The queues' scheme learns."""
        self._queues.finished(
            worker, done.chunk, done.end_s - done.begin_s, overhead_s=done.begin_s - done.asked_s
        )


class _Part:
    """A chunk between nodes that is being done inside of one."""

    def __init__(self, chunk: Chunk, source: FlatSource, begin_s: float) -> None:
        self.chunk = chunk
        self.source = source
        self.begin_s = begin_s
        self.left = chunk.size


class TwoLevelSource:
    """Nodes take large chunks from one queue; inside, workers share each by another choice.

    Who finds its node without work asks for the next chunk, which takes `between_s`; its neighbours
    wait for that, too. The groups of the crowd are the nodes.
    """

    def __init__(
        self,
        outer: Choice,
        inner: Choice,
        *,
        total: int,
        crowd: Crowd,
        overheads: Overheads,
        between_s: float = 1e-3,
        seed: int = 0,
    ) -> None:
        nodes = list(dict.fromkeys(crowd.group_of))
        self._node_of = [nodes.index(group) for group in crowd.group_of]
        self._members = [
            [worker for worker, node in enumerate(self._node_of) if node == place]
            for place in range(len(nodes))
        ]
        self._outer = WorkQueues(outer, total=total, workers=len(nodes), seed=seed)
        self._inner = inner
        self._overheads = overheads
        self._between_s = between_s
        self._seed = seed
        self._present: dict[int, _Part] = {}
        self._parts: dict[Chunk, _Part] = {}

    def take(self, worker: int, now: float) -> Grant | None:
        """From the node's own chunk, or from the next one."""
        node = self._node_of[worker]
        place = self._members[node].index(worker)
        part = self._present.get(node)
        grant = None if part is None else self._within(part, place, now)
        if grant is None:
            part = self._fetch(node, now)
            grant = None if part is None else self._within(part, place, now)
        return grant

    def finished(self, worker: int, done: Done) -> None:
        """The scheme inside learns, and when a node's chunk is all done the one between nodes."""
        node, chunk = self._node_of[worker], done.chunk
        part = self._parts.pop(chunk)
        inside = _moved(chunk, -part.chunk.start)
        part.source.finished(self._members[node].index(worker), done._replace(chunk=inside))
        part.left -= chunk.size
        if part.left == 0:
            took_s = done.end_s - part.begin_s
            self._outer.finished(node, part.chunk, took_s, overhead_s=self._between_s)

    def _within(self, part: _Part, place: int, now: float) -> Grant | None:
        grant = part.source.take(place, max(now, part.begin_s))
        if grant is None:
            return None
        chunk = _moved(grant.chunk, part.chunk.start)
        self._parts[chunk] = part
        return grant._replace(chunk=chunk)

    def _fetch(self, node: int, now: float) -> _Part | None:
        chunk = self._outer.take(node)
        if chunk is None:
            return None
        queues = WorkQueues(
            self._inner, total=chunk.size, workers=len(self._members[node]), seed=self._seed
        )
        part = _Part(chunk, FlatSource(queues, self._overheads), now + self._between_s)
        self._present[node] = part
        return part


def _moved(chunk: Chunk, by: int) -> Chunk:
    return chunk._replace(start=chunk.start + by, stop=chunk.stop + by)
