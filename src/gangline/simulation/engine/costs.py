# SPDX-License-Identifier: Apache-2.0
"""What the steps of one group's members take: computing, exchanging, and each one's hops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gangline.protocol.messages import Metrics
from gangline.simulation.engine.pulling import PartCosts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.planning.allocation.bounds import Floats, Shares
    from gangline.simulation.engine.field import Field
    from gangline.simulation.engine.member import Member
    from gangline.spec.exchange.structure import Structure


class Costs:
    """All members at once; one entry per member, by rank, in each array."""

    def __init__(self, field: Field, members: Sequence[Member], rng: np.random.Generator) -> None:
        self.rows: Shares = np.array([member.life.row for member in members], dtype=np.int64)
        """Which of the scenario's workers the members are."""
        self._row_of = {member.worker: member.life.row for member in members}
        self._field = field
        self._rng = rng
        self._chosen = field.workers.selected(self.rows)
        self._by_group = _grouped(self.rows.tolist(), field.group_of)

    def slowdown(self, step: int, odd: dict[int, Member]) -> Floats:
        """How many times as long as at first each takes; faults slow down only the odd, by rank."""
        slowdown = self._field.workers.slowdown(step, now=self._field.now)[self.rows]
        for rank, member in odd.items():
            if step < member.life.slow_until:
                slowdown[rank] *= member.life.slow_factor
        return slowdown

    def compute_s(self, samples: Shares, *, step: int, slowdown: Floats) -> Floats:
        """How long each takes for its samples."""
        return self._chosen.compute_s(samples, step=step, slowdown=slowdown, rng=self._rng)

    def part_costs(self, *, step: int, slowdown: Floats) -> PartCosts:
        """What parts of a step take each, where they are pulled."""
        chosen = self._chosen
        factor, pause_s = chosen.chance(step=step, slowdown=slowdown, rng=self._rng)
        return PartCosts(
            fixed_s=chosen.fixed_s * factor,
            per_sample_s=chosen.per_sample_s * factor,
            trip_s=chosen.latency_s,
            pause_s=pause_s,
        )

    @property
    def ceilings(self) -> list[int]:
        """The most samples that each can hold at once."""
        return [self._field.ceilings[row] for row in self.rows.tolist()]

    def exchange_s(self, step: int, structure: Structure | None) -> float:
        """How long they exchange, from now on: as long as their worst link makes it."""
        field = self._field
        if len(self.rows) < 2:
            return 0.0
        always_s = field.scenario.exchange_s * float(self._link_slowdown(step).max())
        if field.network.is_free:
            return always_s
        parts = () if structure is None else structure.groups
        groups = [[self._row_of[one] for one in part.workers] for part in parts] or self._by_group
        num_bytes = field.scenario.model_bytes
        return always_s + field.network.group_s(groups, field.now, num_bytes=num_bytes)

    def hop_s(self, step: int) -> Floats | None:
        """How long the hop from each to the next takes; None where nothing can be said of it."""
        field, count = self._field, len(self.rows)
        always_s = field.scenario.exchange_s
        if count < 2 or (always_s == 0 and field.network.is_free):
            return None
        own = self._link_slowdown(step)
        takes_s = always_s * np.maximum(own, np.roll(own, -1))
        if not field.network.is_free:
            part = field.scenario.model_bytes / count
            rows = self.rows.tolist()
            takes_s = takes_s + np.array(field.network.hops_s(rows, field.now, num_bytes=part))
        noise = np.exp(field.scenario.noise * field.noise.standard_normal(count))
        hops: Floats = takes_s * noise
        return hops

    def _link_slowdown(self, step: int) -> Floats:
        return self._field.workers.link_slowdown(step)[self.rows]

    def metrics(self, slowdown: Floats) -> list[Metrics]:
        """What the `kqv` allocations ask each for."""
        chosen = self._chosen
        columns = (
            (1 / (chosen.per_sample_s * slowdown)).tolist(),
            chosen.memory_bytes.tolist(),
            chosen.latency_s.tolist(),
        )
        return [
            Metrics(operations_per_s=speed, memory_bytes=memory, latency_s=latency_s)
            for speed, memory, latency_s in zip(*columns, strict=True)
        ]


def _grouped(rows: list[int], group_of: dict[int, int]) -> list[list[int]]:
    """Those first that are of one group; where nobody is grouped with anybody, all in one ring."""
    by_group: dict[int, list[int]] = {}
    for row in rows:
        by_group.setdefault(group_of[row], []).append(row)
    groups = list(by_group.values())
    return groups if len(groups) < len(rows) else [rows]
