# SPDX-License-Identifier: Apache-2.0
"""The plan: who takes part, in which structure, with which shares, how fast that should be, and why.

A plan is what a view can carry: `nodes` and `shares` are in rank order, and the tree's leaves name the
same nodes in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.spec.errors import LogError, UsageError
from gangline.spec.pipelines import Layout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOPOLOGIES = ("ring", "parameter-server", "halving-doubling", "tree")
"""How a group can exchange."""
SOLO = "solo"
"""The topology of a group of one, which exchanges nothing."""


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes, or the leaders of smaller groups, that exchange with each other."""

    name: str
    topology: str
    """One of `TOPOLOGIES`, or `solo`."""
    leader: str
    """The node that speaks for this group one level up; the server of a parameter server."""
    members: tuple[str, ...] = ()
    """The nodes, in ring order; none where the members are the leaders of `groups`."""
    groups: tuple[GroupPlan, ...] = ()
    latency_s: float = 0.0
    """Of the worst link that this group uses."""
    bytes_per_s: float = 0.0
    """Of the worst link that this group uses; 0 where it uses none."""
    unit_s: float = 0.0
    """Predicted seconds that one unit of the gradient spends at this level, up and back."""
    reason: str = ""

    def __post_init__(self) -> None:
        if bool(self.members) == bool(self.groups):
            raise UsageError(f"group {self.name!r} needs either members or groups, one of the two")

    @property
    def speakers(self) -> tuple[str, ...]:
        """Those who exchange at this level: the members, or the leaders of the groups."""
        return self.members or tuple(group.leader for group in self.groups)

    @property
    def num_levels(self) -> int:
        """How many levels exchange, this one included."""
        return 1 + max((group.num_levels for group in self.groups), default=0)

    def leaves(self) -> Iterator[GroupPlan]:
        """The groups that hold nodes, in rank order."""
        if self.members:
            yield self
        for group in self.groups:
            yield from group.leaves()


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """How long a step should take."""

    compute_s: float
    """Of the slowest node, with its share."""
    exchange_s: float
    """Of all units through all levels, if nothing else went on."""
    hidden_s: float
    """The part of the exchange that goes on while nodes compute."""
    step_s: float
    """`compute_s + exchange_s − hidden_s + other_s`."""
    other_s: float = 0.0
    """Neither computing nor exchanging: loading, the optimizer."""


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """A structure that was considered."""

    name: str
    num_nodes: int
    num_groups: int
    prediction: Prediction


class Spares(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that are in the cluster and not in the plan, and why."""

    nodes: tuple[str, ...]
    reason: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What `gangline plan` writes."""

    nodes: tuple[str, ...]
    """In rank order."""
    shares: tuple[int, ...]
    """Samples of the global batch per rank."""
    root: GroupPlan
    prediction: Prediction
    kind: str
    """`compute-bound`, `memory-bound` or `communication-bound`."""
    grouping: str
    chosen: str
    """The name of the chosen structure."""
    reasons: tuple[str, ...]
    """One sentence per decision, with its numbers."""
    spares: tuple[Spares, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    """What was considered, the chosen one included, the fastest first."""
    pipelines: Layout | None = None
    """How the model would be cut over the nodes, where the workload has layers."""

    def __post_init__(self) -> None:
        if len(self.nodes) != len(self.shares):
            raise UsageError(
                f"a plan needs one share per node: {len(self.nodes)} nodes, "
                f"{len(self.shares)} shares"
            )

    @property
    def global_batch(self) -> int:
        """Samples per step, over all nodes."""
        return sum(self.shares)

    @classmethod
    def from_file(cls, path: Path) -> Plan:
        """Reads what `gangline plan` wrote."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise LogError(f"cannot read the plan {path}: {error.strerror}") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise LogError(
                f"the plan {path} is not usable: {error}; make it anew with `gangline plan`"
            ) from error
