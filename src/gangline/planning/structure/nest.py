# SPDX-License-Identifier: Apache-2.0
"""Groups within groups, before anything is known about how they exchange."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NodeNumbers = NDArray[np.int64]
NOBODY: NodeNumbers = np.zeros(0, dtype=np.int64)


class Nest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A group: either of nodes, or of smaller groups."""

    name: str
    members: NodeNumbers = NOBODY
    groups: tuple[Nest, ...] = ()

    def leaves(self) -> Iterator[Nest]:
        """The groups of nodes."""
        if not self.groups:
            yield self
        for group in self.groups:
            yield from group.leaves()

    def restricted(self, is_used: NDArray[np.bool_]) -> Nest | None:
        """What is left with these nodes alone; None where nobody is."""
        if not self.groups:
            members = self.members[is_used[self.members]]
            return msgspec.structs.replace(self, members=members) if len(members) else None
        left = [group.restricted(is_used) for group in self.groups]
        return merged(self.name, [group for group in left if group is not None])


def merged(name: str, groups: Sequence[Nest]) -> Nest | None:
    """A group of these groups, without levels that hold nothing together.

    One group needs no group around it, and groups of one node each are one group of nodes.
    """
    if len(groups) <= 1:
        return groups[0] if groups else None
    if all(not group.groups and len(group.members) == 1 for group in groups):
        return Nest(name=name, members=np.concatenate([group.members for group in groups]))
    return Nest(name=name, groups=tuple(groups))


def flat(nodes: NodeNumbers) -> Nest:
    """One group of all."""
    return Nest(name="all", members=nodes)


def square_root(nodes: NodeNumbers, *, name: str = "part") -> Nest:
    """√n groups of √n nodes each, in the given order: the paper's baseline."""
    count = max(1, round(math.sqrt(len(nodes))))
    parts = np.array_split(nodes, count)
    groups = [Nest(name=f"{name} {i}", members=part) for i, part in enumerate(parts)]
    return merged("all", groups) or flat(nodes)


def drawn(nodes: NodeNumbers, *, rng: np.random.Generator) -> Nest:
    """√n groups of √n nodes, formed at random."""
    return square_root(rng.permutation(nodes), name="draw")
