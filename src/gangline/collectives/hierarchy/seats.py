# SPDX-License-Identifier: Apache-2.0
"""Where one member sits in a tree of groups: the levels at which it exchanges, and with whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gangline.spec.exchange.compression import NONE
from gangline.spec.exchange.structure import TOP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangline.spec.exchange.structure import Structure


class Seat(NamedTuple):
    """This member's part in the group of one level."""

    name: str
    """Names the group among all of its tree: `top`, and `top.0.1` for the second group in the first."""
    topology: str
    speakers: tuple[int, ...]
    """The ranks of those that exchange here."""
    place: int
    """This member's place among them."""
    leader: int
    """The leader's place among them."""
    depth: int
    """How many levels there are above."""
    via: Mapping[int, int]
    """The ranks below this group, and the place of who speaks for each of them here."""
    compression: str = NONE
    """How its exchange of gradients is shortened."""

    @property
    def is_leader(self) -> bool:
        return self.place == self.leader

    @property
    def is_top(self) -> bool:
        return self.depth == 0


def seats_of(structure: Structure, rank: int) -> list[Seat]:
    """The levels at which a member exchanges, its own group first; none for who is alone.

    The workers of the structure are the ranks 0 … size - 1. Groups of one exchange nothing.
    """
    seats = []
    group, name, depth = structure, TOP, 0
    while len(group.groups) == 1:  # the top is where the whole sum is made
        group = group.groups[0]
    while True:
        if rank in group.speakers and len(group.speakers) > 1:
            seats.append(_seat(group, rank, name=name, depth=depth))
        if group.members:
            return seats[::-1]
        index = next(i for i, part in enumerate(group.groups) if rank in part.workers)
        group, name, depth = group.groups[index], f"{name}.{index}", depth + 1


def _seat(group: Structure, rank: int, *, name: str, depth: int) -> Seat:
    branches: list[tuple[int, ...]] = [(one,) for one in group.members]
    branches += [part.workers for part in group.groups]
    return Seat(
        name=name,
        topology=group.topology,
        speakers=group.speakers,
        place=group.speakers.index(rank),
        leader=group.speakers.index(group.leader),
        depth=depth,
        via={one: place for place, branch in enumerate(branches) for one in branch},
        compression=group.compression,
    )
