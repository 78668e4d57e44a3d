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

    def __post_init__(self) -> None:
        if not (math.isfinite(self.speed) and 0 < self.speed <= 1):
            raise UsageError(
                f"node {self.name!r}: speed is a fraction of this machine's speed, "
                f"above 0 and at most 1, not {self.speed}"
            )
        if self.workers < 1:
            raise UsageError(f"node {self.name!r}: workers must be at least 1, not {self.workers}")


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All nodes of a job."""

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        if not self.nodes:
            raise UsageError("a cluster needs at least one node ([[nodes]] in the file)")
        check_names(node.name for node in self.nodes)

    @classmethod
    def of_speeds(cls, speeds: list[float]) -> Cluster:
        """One worker per speed, named n0, n1, …"""
        return cls(nodes=tuple(Node(name=f"n{i}", speed=s) for i, s in enumerate(speeds)))

    @classmethod
    def from_toml(cls, path: Path) -> Cluster:
        """Reads a cluster file; every mistake in it is named."""
        return read_toml(path, cls, what="cluster file")

    @property
    def worker_nodes(self) -> tuple[Node, ...]:
        """The node of each worker, in worker order."""
        return tuple(node for node in self.nodes for _ in range(node.workers))
