# SPDX-License-Identifier: Apache-2.0
"""A simulated step whose parts are pulled: who computes which, and when each is through.

The parts are those of a real run's desk (`control.shares.parts_desk`). A worker asks for its next part
when it begins the backward pass of the present one, and goes on when it has computed that and the
answer is there. What a machine is slower by than usual, it is for all parts of a step.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gangline.control.shares.parts_desk import PartsDesk, Pool
from gangline.control.shares.pulling import parse_pulling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.control import ControlOptions
    from gangline.planning.allocation.bounds import Floats, Shares
    from gangline.simulation.course import Position
    from gangline.spec.view import View

BACKWARD = 1 / 3
"""The part of a pass after which its backward pass begins: that takes about twice the forward pass."""


class PartCosts(NamedTuple):
    """What a part takes each member, by rank, and how long it waits for an answer."""

    fixed_s: Floats
    per_sample_s: Floats
    trip_s: Floats
    pause_s: Floats
    """What each loses once in the step, whatever it computes."""


class PulledStep(NamedTuple):
    """Who has computed what, by rank."""

    samples: Shares
    through_s: Floats
    """When each member has come to the exchange, after the step has begun."""
    parts: list[list[tuple[int, int]]]


class SimulatedPulls:
    """What is pulled in a job, by all members of a group."""

    def __init__(self, options: ControlOptions) -> None:
        pulling = parse_pulling(options.allocation)
        self._pulling = pulling
        self._minimum = options.minimum
        self._desk = None if pulling is None else PartsDesk(pulling)

    @property
    def is_on(self) -> bool:
        """Whether parts are pulled at all."""
        return self._desk is not None

    def pull(
        self,
        view: View,
        position: Position,
        stop: int,
        *,
        costs: PartCosts,
        ceilings: Sequence[int],
    ) -> PulledStep:
        """The step whose samples are `position.start` … `stop` - 1."""
        assert self._pulling is not None
        heads = [0] * len(view.members)
        if stop - position.start == view.global_batch:
            heads = self._pulling.heads(view.shares, minimum=self._minimum)
        start = position.start + sum(heads)
        pool = Pool(view.group, position.epoch, position.step, start, stop)
        return _Step(self, view, pool, heads, costs, ceilings).run()

    def give(
        self, view: View, pool: Pool, rank: int, number: int, ceiling: int
    ) -> tuple[int, int] | None:
        """The next part of a member; None: nothing is left."""
        assert self._desk is not None
        if pool.start == pool.stop:
            return None
        return self._desk.give(
            view.members[rank],
            pool,
            number,
            members=view.members,
            minimum=self._minimum,
            ceiling=ceiling,
        )

    def learn(self, worker: int, samples: int, seconds: float) -> None:
        """A worker has told how long a part took."""
        assert self._desk is not None
        self._desk.learn(worker, samples, seconds)


class _Step:
    """One step, from the first part to the last."""

    def __init__(
        self,
        pulls: SimulatedPulls,
        view: View,
        pool: Pool,
        heads: Sequence[int],
        costs: PartCosts,
        ceilings: Sequence[int],
    ) -> None:
        count = len(view.members)
        self._pulls = pulls
        self._view = view
        self._pool = pool
        self._heads = heads
        self._costs = costs
        self._ceilings = ceilings
        self._parts: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        self._through_s = np.zeros(count)
        self._told: list[tuple[int, float]] = [(0, 0.0)] * count
        """What each will tell of the part that it computes."""
        self._asking: list[tuple[float, int]] = []

    def run(self) -> PulledStep:
        """All parts, in the order in which they are asked for."""
        first = self._pool.start - sum(self._heads)
        for rank, head in enumerate(self._heads):
            self._through_s[rank] = self._costs.pause_s[rank]
            if head:
                self._compute(rank, (first, first + head), begins_s=0.0)
            else:
                self._asking.append((0.0, rank))
            first += head
        heapq.heapify(self._asking)
        while self._asking:
            self._answer(*heapq.heappop(self._asking))
        sizes = [sum(stop - start for start, stop in parts) for parts in self._parts]
        return PulledStep(np.array(sizes, dtype=np.int64), self._through_s, self._parts)

    def _answer(self, asked_s: float, rank: int) -> None:
        there_s = asked_s + float(self._costs.trip_s[rank])
        number = len(self._parts[rank]) - (self._heads[rank] > 0)
        part = self._pulls.give(self._view, self._pool, rank, number, self._ceilings[rank])
        if part is not None:
            self._compute(rank, part, begins_s=there_s)
            return
        ghost_s = 0.0 if self._parts[rank] else self._part_s(rank, 1)
        self._through_s[rank] = max(self._through_s[rank], there_s) + ghost_s
        self._pulls.learn(self._view.members[rank], *self._told[rank])

    def _compute(self, rank: int, part: tuple[int, int], *, begins_s: float) -> None:
        samples, (before, before_s) = part[1] - part[0], self._told[rank]
        self._pulls.learn(self._view.members[rank], before, before_s)
        takes_s = self._part_s(rank, samples)
        begins_s = max(begins_s, float(self._through_s[rank]))
        self._through_s[rank] = begins_s + takes_s
        self._told[rank] = (samples, takes_s)
        self._parts[rank].append(part)
        heapq.heappush(self._asking, (begins_s + BACKWARD * takes_s, rank))

    def _part_s(self, rank: int, samples: int) -> float:
        return float(self._costs.fixed_s[rank] + self._costs.per_sample_s[rank] * samples)
