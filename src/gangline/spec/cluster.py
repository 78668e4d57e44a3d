# SPDX-License-Identifier: Apache-2.0
"""The cluster: which nodes there are, and how unlike they are.

A cluster file is TOML:

    [[nodes]]
    name = "desk"
    speed = 1.0

    [[nodes]]
    name = "laptop"
    speed = 0.2
    workers = 2
    place = "home"
    bytes_per_s = 12.5e6

    [[links]]
    between = ["desk", "home"]
    bytes_per_s = 2.5e6
    delay_s = 0.02
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from gangline.spec.errors import UsageError
from gangline.spec.toml import read_toml

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def check_names(names: Iterable[str]) -> None:
    """Refuses nodes that cannot be told apart."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise UsageError(f"node names must differ; used more than once: {', '.join(twice)}")


class Node(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One machine, real or emulated."""

    name: str
    speed: float = 1.0
    """How fast it computes; 1 is this machine's own speed. Emulated by pacing."""
    workers: int = 1
    """Training processes on this node."""
    place: str = ""
    """Where it is, such as `lab/rack3`; links may lead from place to place."""
    bytes_per_s: float | None = None
    """Of its own link, each way; None: not limited."""
    delay_s: float = 0.0
    """Of its own link, each way."""
    environment: dict[str, str] = {}
    """Variables that its workers get, such as CUDA_VISIBLE_DEVICES: which device they compute on."""

    def __post_init__(self) -> None:
        _check_link(f"node {self.name!r}", self.bytes_per_s, self.delay_s)
        if not (math.isfinite(self.speed) and 0 < self.speed <= 1):
            raise UsageError(
                f"node {self.name!r}: speed is a fraction of this machine's speed, "
                f"above 0 and at most 1, not {self.speed}"
            )
        if self.workers < 1:
            raise UsageError(f"node {self.name!r}: workers must be at least 1, not {self.workers}")


class NetworkLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What lies between two places, or nodes: all that crosses shares it, each way for itself."""

    between: tuple[str, str]
    """The names of two nodes or places; a place holds the places inside it, too."""
    bytes_per_s: float | None = None
    """None: not limited."""
    delay_s: float = 0.0
    """One way."""

    def __post_init__(self) -> None:
        first, second = self.between
        what = f"the link between {first!r} and {second!r}"
        _check_link(what, self.bytes_per_s, self.delay_s)
        if self.bytes_per_s is None and self.delay_s == 0:
            raise UsageError(
                f"{what} has neither bytes_per_s nor delay_s: give one, or leave it out"
            )
        if is_inside(first, second) or is_inside(second, first):
            raise UsageError(
                f"{what}: one end is the other, or inside it; name two that have nothing in common"
            )


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All nodes of a job."""

    nodes: tuple[Node, ...]
    links: tuple[NetworkLink, ...] = ()

    def __post_init__(self) -> None:
        if not self.nodes:
            raise UsageError("a cluster needs at least one node ([[nodes]] in the file)")
        check_names(node.name for node in self.nodes)
        _check_ends(self.nodes, self.links)

    @classmethod
    def of_speeds(cls, speeds: Iterable[float], *, workers: int = 1) -> Cluster:
        """Nodes n0, n1, … of these speeds, with so many workers each."""
        return cls(
            nodes=tuple(
                Node(name=f"n{index}", speed=speed, workers=workers)
                for index, speed in enumerate(speeds)
            )
        )

    @classmethod
    def from_toml(cls, path: Path) -> Cluster:
        """Reads a cluster file; every mistake in it is named."""
        return read_toml(path, cls, what="cluster file")

    @property
    def has_network(self) -> bool:
        """Whether the links between the nodes are to be emulated."""
        is_limited = any(node.bytes_per_s is not None or node.delay_s for node in self.nodes)
        return is_limited or bool(self.links)

    def link_between(self, first: Node, second: Node) -> NetworkLink | None:
        """What lies between two nodes besides their own links; of several, the most exact one."""
        found = [
            link
            for link in self.links
            if _joins(link.between, first, second) or _joins(link.between, second, first)
        ]
        return max(found, key=lambda link: _exactness(link, (first, second)), default=None)

    @property
    def worker_nodes(self) -> tuple[Node, ...]:
        """The node of each worker, in worker order."""
        return tuple(node for node in self.nodes for _ in range(node.workers))


def is_inside(place: str, around: str) -> bool:
    """Whether a place is another one, or inside it."""
    return place == around or place.startswith(f"{around}/")


def is_at(node: Node, end: str) -> bool:
    """Whether the end of a link is this node, or a place that holds it."""
    return node.name == end or is_inside(node.place, end)


def _joins(between: tuple[str, str], first: Node, second: Node) -> bool:
    return is_at(first, between[0]) and is_at(second, between[1])


def _exactness(link: NetworkLink, nodes: tuple[Node, Node]) -> tuple[int, int]:
    """A node's name is more exact than any place; of places, the innermost."""
    names = {node.name for node in nodes}
    return sum(end in names for end in link.between), sum(end.count("/") for end in link.between)


def _check_link(what: str, bytes_per_s: float | None, delay_s: float) -> None:
    if bytes_per_s is not None and not 0 < bytes_per_s < math.inf:
        raise UsageError(f"{what}: bytes_per_s must be finite and above 0, not {bytes_per_s}")
    if not 0 <= delay_s < math.inf:
        raise UsageError(f"{what}: delay_s must be finite and 0 or more, not {delay_s}")


def _check_ends(nodes: tuple[Node, ...], links: tuple[NetworkLink, ...]) -> None:
    seen: set[frozenset[str]] = set()
    for link in links:
        for end in link.between:
            if not any(is_at(node, end) for node in nodes):
                known = sorted({node.name for node in nodes} | {n.place for n in nodes if n.place})
                raise UsageError(
                    f"the link between {link.between[0]!r} and {link.between[1]!r} ends at {end!r}, "
                    f"which is no node and holds none; there are {', '.join(known)}"
                )
        ends = frozenset(link.between)
        if ends in seen:
            raise UsageError(
                f"the link between {' and '.join(map(repr, sorted(ends)))} is there twice; "
                "leave one out"
            )
        seen.add(ends)
