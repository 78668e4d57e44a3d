# SPDX-License-Identifier: Apache-2.0
"""What it takes simulated workers to send each other bytes: latency and bandwidth, message by message.

A ring is gone round as the real ones do: every member sends a part to the next, and passes on what it
has received, 2(p - 1) times. A message leaves when it is there and the one before it is through, takes
bytes over bandwidth, and arrives after the delay and some jitter. So a ring of like links takes what
the cost model says, 2(p - 1)·latency + 2(p - 1)/p·bytes/bandwidth, one with a bad link among good ones
as much as that one makes of it, and one whose links change meanwhile what comes of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gangline.simulation.links import Spell, factor_at, is_forward, link_between

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from gangline.simulation.links import SimulatedLink
    from gangline.simulation.scenario import Scenario, SimulatedNode


class _Lane(NamedTuple):
    """One direction of a link that carries one message after the other, whoever sent them."""

    name: tuple[str, ...]
    s_per_byte: float
    spells: tuple[Spell, ...] = ()


class _Way(NamedTuple):
    """From one node to another."""

    delay_s: float
    own_s_per_byte: float
    """Of the nodes' own links."""
    s_per_byte: float
    """Of what lies between them."""
    jitter_s: float
    spells: tuple[Spell, ...]
    lanes: tuple[_Lane, ...] = ()
    """What it goes over, and others, too."""

    @property
    def is_free(self) -> bool:
        """Whether it costs nothing to send something."""
        return not any((self.delay_s, self.own_s_per_byte, self.s_per_byte, self.jitter_s))


class Network:
    """The ways between the workers of a scenario, and what has gone over those that cost something."""

    def __init__(self, scenario: Scenario, rng: np.random.Generator) -> None:
        self.crossed_bytes = 0.0
        """How much was sent over limited links."""
        self._scenario = scenario
        self._rng = rng
        self._ways: dict[tuple[int, int], _Way] = {}
        self._taken_s: dict[tuple[str, ...], float] = {}
        """Up to when each lane is taken."""
        self.is_free = not scenario.links and all(
            node.bytes_per_s is None and node.delay_s == 0 for node in scenario.nodes
        )
        """Whether nothing that is sent takes any time."""

    def ring_s(
        self, rows: Sequence[int], begin_s: Sequence[float], *, num_bytes: float, passes: int = 2
    ) -> list[float]:
        """When each member of a ring has the sum; each of them is there from its own time on.

        `passes` times round: 2 for a sum, 1 to give everybody everybody's part.
        """
        count = len(rows)
        if count == 1:
            return list(begin_s)
        if self.is_free:
            return [max(begin_s)] * count
        part = num_bytes / count
        ways = [self._way(rows[i], rows[(i + 1) % count]) for i in range(count)]
        there_s, free_s = list(begin_s), list(begin_s)
        for _ in range(passes * (count - 1)):
            arrived_s = [0.0] * count
            for i, way in enumerate(ways):
                leaves_s = max(there_s[i], free_s[i])
                free_s[i], came_s = self._send(way, leaves_s, part)
                arrived_s[(i + 1) % count] = came_s
            there_s = [max(old, new) for old, new in zip(there_s, arrived_s, strict=True)]
        return there_s

    def group_s(self, groups: Sequence[Sequence[int]], now: float, *, num_bytes: float) -> float:
        """What it takes all members of these groups to have the sum, by way of their leaders."""
        up_s = [max(self._within(group, now, num_bytes)) for group in groups]
        leaders = [group[0] for group in groups]
        across_s = self.ring_s(leaders, up_s, num_bytes=num_bytes)
        if len(groups) == 1:
            return across_s[0] - now
        back_s = [
            max(self._within(group, at, num_bytes))
            for group, at in zip(groups, across_s, strict=True)
        ]
        return max(back_s) - now

    def hops_s(self, rows: Sequence[int], now: float, *, num_bytes: float) -> list[float]:
        """What a message takes from each member of a ring to the next."""
        ways = [self._way(row, rows[(i + 1) % len(rows)]) for i, row in enumerate(rows)]
        return [
            way.delay_s
            + num_bytes * max(way.own_s_per_byte, way.s_per_byte * factor_at(way.spells, now))
            for way in ways
        ]

    def spread_s(self, rows: Sequence[int], now: float, *, num_bytes: float) -> float:
        """What it takes a leader to give the others of its group what it has."""
        return max(self.ring_s(rows, [now] * len(rows), num_bytes=num_bytes, passes=1)) - now

    def deliver_s(self, source: int, target: int, now: float, *, num_bytes: float) -> float:
        """When something is there that is sent now, behind all that its links were given before.

        Each node's own link, in each direction, and each link between places carries one message
        after the other. A message is through when the last of its links is done with it.
        """
        way = self._way(source, target)
        if way.is_free:
            return now
        self.crossed_bytes += num_bytes
        through_s = now
        for lane in way.lanes:
            takes_s = num_bytes * lane.s_per_byte * factor_at(lane.spells, now)
            self._taken_s[lane.name] = max(now, self._taken_s.get(lane.name, 0.0)) + takes_s
            through_s = max(through_s, self._taken_s[lane.name])
        return through_s + way.delay_s + way.jitter_s * float(self._rng.random())

    def _within(self, rows: Sequence[int], now: float, num_bytes: float) -> list[float]:
        return self.ring_s(rows, [now] * len(rows), num_bytes=num_bytes)

    def _send(self, way: _Way, leaves_s: float, num_bytes: float) -> tuple[float, float]:
        """When the way is free again, and when a message is there that leaves at a time."""
        if way.is_free:
            return leaves_s, leaves_s
        self.crossed_bytes += num_bytes
        s_per_byte = way.s_per_byte * factor_at(way.spells, leaves_s)
        through_s = leaves_s + num_bytes * max(way.own_s_per_byte, s_per_byte)
        return through_s, through_s + way.delay_s + way.jitter_s * float(self._rng.random())

    def _way(self, source: int, target: int) -> _Way:
        known = self._ways.get((source, target))
        if known is not None:
            return known
        nodes = self._scenario.worker_nodes
        first, second = nodes[source], nodes[target]
        if first.name == second.name:
            way = _Way(0.0, 0.0, 0.0, 0.0, ())
        else:
            link = link_between(first, second, self._scenario.links)
            way = _Way(
                delay_s=first.delay_s + second.delay_s + (0.0 if link is None else link.delay_s),
                own_s_per_byte=max(_s_per_byte(first.bytes_per_s), _s_per_byte(second.bytes_per_s)),
                s_per_byte=0.0 if link is None else _s_per_byte(link.bytes_per_s),
                jitter_s=0.0 if link is None else link.jitter_s,
                spells=() if link is None else link.spells,
                lanes=_lanes(first, second, link),
            )
        self._ways[source, target] = way
        return way


def _lanes(
    first: SimulatedNode, second: SimulatedNode, link: SimulatedLink | None
) -> tuple[_Lane, ...]:
    own = (
        _Lane(("from", first.name), _s_per_byte(first.bytes_per_s)),
        _Lane(("to", second.name), _s_per_byte(second.bytes_per_s)),
    )
    if link is None:
        return own
    name = link.between if is_forward(link, first) else link.between[::-1]
    return (*own, _Lane(("between", *name), _s_per_byte(link.bytes_per_s), link.spells))


def _s_per_byte(bytes_per_s: float | None) -> float:
    return 0.0 if bytes_per_s is None else 1 / bytes_per_s
