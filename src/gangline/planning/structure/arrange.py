# SPDX-License-Identifier: Apache-2.0
"""How a group of like links exchanges: which topology, and in rings of which size.

A large ring pays its latency 2(p − 1) times per unit. Cut into rings of s, whose leaders form a ring
again, it pays it for s and p/s, but moves the bytes once more per level. The cost model decides, size
by size: no limit is given from outside.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from gangline.planning.cost.model import all_reduce_s, level_s, pipelined_s

if TYPE_CHECKING:
    from gangline.planning.cost.grouplinks import GroupLinks


class Style(NamedTuple):
    """What a structure may be made of."""

    topologies: tuple[str, ...] = ("ring", "parameter-server")
    may_split: bool = True
    """Whether a group may be cut into smaller ones of our own making."""


class Level(NamedTuple):
    """One level of an arrangement."""

    topology: str
    size: int
    """Members of its groups, the last of which may be smaller."""
    unit_s: float


class Arrangement(NamedTuple):
    """The levels of one group, the innermost first; the last one holds all that are left."""

    levels: tuple[Level, ...]
    path_s: float
    """One unit through all levels."""
    bottleneck_s: float
    """How often a unit can follow another: what the busiest member spends on one."""


class Job(NamedTuple):
    """What is sent: units of so many bytes."""

    num_bytes: float
    num_units: int


class Arranger:
    """Finds arrangements, and remembers them: most groups of a large cluster are alike."""

    def __init__(self, style: Style, job: Job) -> None:
        self._style = style
        self._job = job
        self._known: dict[tuple[object, ...], Arrangement] = {}

    def arrange(self, count: int, links: GroupLinks, *, is_top: bool) -> Arrangement:
        """The fastest way for `count` members with these links."""
        key = (count, is_top, links.ring, links.star, links.pairwise)
        if key not in self._known:
            self._known[key] = self._find(count, links, is_top=is_top)
        return self._known[key]

    def _find(self, count: int, links: GroupLinks, *, is_top: bool) -> Arrangement:
        best = self._one_level(count, links, is_top=is_top)
        if not self._style.may_split:
            return best
        for size in _sizes(count):
            inner = self._one_level(size, links, is_top=False)
            outer = self.arrange(math.ceil(count / size), links, is_top=is_top)
            both = Arrangement(
                levels=inner.levels + outer.levels,
                path_s=inner.path_s + outer.path_s,
                # A leader takes part in both levels over one link: its units cannot overtake there.
                bottleneck_s=inner.bottleneck_s + outer.bottleneck_s,
            )
            if self._time(both) < self._time(best):
                best = both
        return best

    def _one_level(self, count: int, links: GroupLinks, *, is_top: bool) -> Arrangement:
        times = [
            (self._unit_s(topology, count, links, is_top=is_top), place, topology)
            for place, topology in enumerate(self._style.topologies)
        ]
        unit_s, _, topology = min(times)
        return Arrangement((Level(topology, count, unit_s),), unit_s, unit_s)

    def _unit_s(self, topology: str, count: int, links: GroupLinks, *, is_top: bool) -> float:
        link = links.of(topology)
        if is_top:
            return all_reduce_s(topology, count, num_bytes=self._job.num_bytes, link=link)
        return level_s(topology, count, num_bytes=self._job.num_bytes, link=link).total_s

    def _time(self, arrangement: Arrangement) -> float:
        return pipelined_s(
            arrangement.path_s, arrangement.bottleneck_s, num_units=self._job.num_units
        )


def _sizes(count: int) -> list[int]:
    """Sizes of inner groups worth a try: powers of two and the square root, at least two groups."""
    sizes = {1 << k for k in range(1, count.bit_length())} | {round(math.sqrt(count))}
    return sorted(size for size in sizes if 2 <= size <= count // 2)
