# SPDX-License-Identifier: Apache-2.0
"""What lies between simulated nodes, as a cluster file says it; and times in which it is worse.

[[links]]
between = ["lab", "home"]
bytes_per_s = 2.5e6
delay_s = 0.02
jitter_s = 0.005
spells = [{ from_s = 60, to_s = 120, factor = 10 }]
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import msgspec

from gangline.spec.cluster import is_inside
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Placed(Protocol):
    """A node, as far as links are concerned."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def place(self) -> str:
        """Where it is."""


class Spell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A time during which something takes longer (or, with a factor below 1, less long)."""

    from_s: float
    to_s: float
    """The first moment at which it is as before."""
    factor: float
    """How many times as long it takes."""

    def __post_init__(self) -> None:
        if not (0 <= self.from_s < self.to_s and 0 < self.factor < math.inf):
            raise UsageError(
                f"a spell lasts from a time to a later one and has a factor above 0, not "
                f"from_s = {self.from_s}, to_s = {self.to_s}, factor = {self.factor}"
            )


class SimulatedLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What lies between two places, or nodes."""

    between: tuple[str, str]
    """The names of two nodes or places; a place holds the places inside it, too."""
    bytes_per_s: float | None = None
    """None: not limited."""
    delay_s: float = 0.0
    """One way."""
    jitter_s: float = 0.0
    """A message is late by up to so much more, at random."""
    spells: tuple[Spell, ...] = ()
    """Times in which its bytes take longer; the delay stays as it is."""

    def __post_init__(self) -> None:
        first, second = self.between
        if self.spells and self.bytes_per_s is None:
            raise UsageError(
                f"the link between {first!r} and {second!r} has spells, in which its bytes take "
                "longer, but takes no time for bytes: give bytes_per_s"
            )
        check_link(
            f"the link between {first!r} and {second!r}",
            bytes_per_s=self.bytes_per_s,
            delay_s=self.delay_s,
            jitter_s=self.jitter_s,
        )
        if is_inside(first, second) or is_inside(second, first):
            raise UsageError(
                f"the link between {first!r} and {second!r}: one end is the other, or inside it; "
                "name two that have nothing in common"
            )


def check_link(what: str, *, bytes_per_s: float | None, delay_s: float, jitter_s: float) -> None:
    """Refuses a link that cannot be."""
    if bytes_per_s is not None and not 0 < bytes_per_s < math.inf:
        raise UsageError(f"{what}: bytes_per_s must be finite and above 0, not {bytes_per_s}")
    for name, value in (("delay_s", delay_s), ("jitter_s", jitter_s)):
        if not 0 <= value < math.inf:
            raise UsageError(f"{what}: {name} must be finite and 0 or more, not {value}")


def check_ends(nodes: Iterable[Placed], links: Iterable[SimulatedLink]) -> None:
    """Refuses links that lead nowhere."""
    known = list(nodes)
    for link in links:
        for end in link.between:
            if not any(_is_at(node, end) for node in known):
                names = sorted({node.name for node in known} | {n.place for n in known if n.place})
                raise UsageError(
                    f"the link between {link.between[0]!r} and {link.between[1]!r} ends at {end!r}, "
                    f"which is no node and holds none; there are {', '.join(names)}"
                )


def link_between(
    first: Placed, second: Placed, links: Sequence[SimulatedLink]
) -> SimulatedLink | None:
    """What lies between two nodes besides their own links; of several, the most exact one."""
    names = {first.name, second.name}
    found = [
        link
        for link in links
        if _joins(link.between, first, second) or _joins(link.between, second, first)
    ]
    return max(
        found,
        key=lambda link: (
            sum(end in names for end in link.between),
            sum(end.count("/") for end in link.between),
        ),
        default=None,
    )


def is_forward(link: SimulatedLink, source: Placed) -> bool:
    """Whether a message from this node goes by a link from its first end to its second."""
    return _is_at(source, link.between[0])


def factor_at(spells: Iterable[Spell], now: float) -> float:
    """How many times as long something takes at a moment."""
    return math.prod(spell.factor for spell in spells if spell.from_s <= now < spell.to_s)


def _is_at(node: Placed, end: str) -> bool:
    return node.name == end or is_inside(node.place, end)


def _joins(between: tuple[str, str], first: Placed, second: Placed) -> bool:
    return _is_at(first, between[0]) and _is_at(second, between[1])
