# SPDX-License-Identifier: Apache-2.0
"""The structure: how the workers of a view exchange, as a tree of groups.

    ring(ring(0*, 1), server(2*, 3, 4))     workers 0 and 2 speak for their groups, and form a ring

A group is made of workers, or of smaller groups, whose leaders then exchange with each other. A view
without a structure is flat: one ring of all.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from gangline.spec.errors import UsageError
from gangline.spec.exchange.compression import NONE, Compression
from gangline.spec.plan import SOLO, GroupPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

RING = "ring"
SERVER = "parameter-server"
CARRIED_OUT = (RING, SERVER)
"""The topologies that the runtime can carry out."""
MAX_LEVELS = 32
"""More than help anybody: groups of two, nested as deep, would hold four thousand million workers."""
TOP = "top"
"""The name of the group in which the whole sum is made; those below are `top.0`, `top.0.1`, …"""
_SHORT = {RING: "ring", SERVER: "server"}


class Structure(msgspec.Struct, frozen=True, kw_only=True):
    """Workers, or smaller groups of them, that exchange with each other."""

    topology: str
    """One of `CARRIED_OUT`."""
    leader: int
    """Who speaks for this group one level up; the server of a parameter server."""
    members: tuple[int, ...] = ()
    """Worker ids, in ring order; none where the members are the leaders of `groups`."""
    groups: tuple[Structure, ...] = ()
    compression: str = NONE
    """How this group's own exchange of gradients is shortened: a name of `Compression`."""

    def __post_init__(self) -> None:
        if self.topology not in CARRIED_OUT:
            raise UsageError(
                f"topology {self.topology!r} cannot be carried out; choose one of: "
                f"{', '.join(CARRIED_OUT)}"
            )
        if bool(self.members) == bool(self.groups):
            raise UsageError(
                "a group of a structure needs either members or groups, one of the two"
            )
        if self.num_levels > MAX_LEVELS:
            raise UsageError(
                f"a structure has at most {MAX_LEVELS} levels, not {self.num_levels}; leave out "
                "groups that hold one group only"
            )
        if not Compression.parse(self.compression).is_none and self.topology != RING:
            raise UsageError(
                f"compression {self.compression} needs a ring: a {self.topology} sends everything "
                "as it is; choose none for this group, or make it a ring"
            )
        workers = self.workers
        if len(set(workers)) < len(workers):
            twice = sorted(one for one, count in Counter(workers).items() if count > 1)
            raise UsageError(f"a structure holds each worker once; more than once: {twice[:8]}")
        if self.leader not in self.speakers:
            raise UsageError(
                f"leader {self.leader} of a group must be one of those that exchange in it: "
                f"{list(self.speakers)}"
            )

    def __str__(self) -> str:
        short = _SHORT[self.topology]
        if self.compression != NONE:
            short += f"[{self.compression}]"
        if self.groups:
            parts = [str(group) for group in self.groups]
            # Which of the groups' leaders is meant need not be said where it is nobody's server.
            server = f" at {self.leader}" if self.topology == SERVER else ""
            return f"{short}{server}({', '.join(parts)})"
        names = [f"{one}*" if one == self.leader else str(one) for one in self.members]
        return f"{short}({', '.join(names)})"

    @classmethod
    def flat(cls, workers: Sequence[int]) -> Structure:
        """One ring of all."""
        return cls(topology=RING, leader=workers[0], members=tuple(workers))

    @classmethod
    def from_plan(
        cls, group: GroupPlan, workers_of: Mapping[str, Sequence[int]], *, is_top: bool = True
    ) -> Structure:
        """The structure of a plan's tree; `workers_of` says which workers each node has."""
        if is_top:
            _check_nodes(group, workers_of)
        topology = RING if group.topology == SOLO else group.topology
        if topology not in CARRIED_OUT:
            raise UsageError(
                f"group {group.name!r} of the plan is a {topology}, which cannot be carried out; "
                f"plan with topologies out of: {', '.join(CARRIED_OUT)}"
            )
        if group.leader not in workers_of:
            raise UsageError(
                f"the leader {group.leader!r} of group {group.name!r} is no node of this run; plan "
                "again, or correct the plan"
            )
        leader = workers_of[group.leader][0]
        members = tuple(worker for node in group.members for worker in workers_of[node])
        parts = tuple(cls.from_plan(part, workers_of, is_top=False) for part in group.groups)
        return cls(topology=topology, leader=leader, members=members, groups=parts)

    @property
    def workers(self) -> tuple[int, ...]:
        """All workers below, in the order of the tree."""
        if self.members:
            return self.members
        return tuple(worker for group in self.groups for worker in group.workers)

    @property
    def speakers(self) -> tuple[int, ...]:
        """Those who exchange at this level: the members, or the leaders of the groups."""
        return self.members or tuple(group.leader for group in self.groups)

    @property
    def num_levels(self) -> int:
        """How many levels there are, this one included."""
        return 1 + max((group.num_levels for group in self.groups), default=0)

    @property
    def is_flat(self) -> bool:
        """Whether it is one ring of all, in which everything is sent as it is."""
        return bool(self.members) and self.topology == RING and self.compression == NONE

    def relabelled(self, label: Callable[[int], int]) -> Structure:
        """The same tree with other numbers for its workers."""
        return Structure(
            topology=self.topology,
            leader=label(self.leader),
            members=tuple(label(one) for one in self.members),
            groups=tuple(group.relabelled(label) for group in self.groups),
            compression=self.compression,
        )

    def compressed(self, name: str, compression: Compression) -> Structure:
        """The same tree in which one group shortens what it sends.

        Groups are named as in messages: `top`, and `top.0.1` for the second group in the first.
        """
        if len(self.groups) == 1:  # the top is where the whole sum is made
            only = self.groups[0].compressed(name, compression)
            return msgspec.structs.replace(self, groups=(only,))
        first, *path = name.split(".")
        changed = self._compressed(path, compression) if first == TOP else None
        if changed is None:
            raise UsageError(
                f"no group {name!r} in {self}; write {TOP}, or {TOP}.0.1 for the second group in the "
                "first"
            )
        return changed

    def _compressed(self, path: Sequence[str], compression: Compression) -> Structure | None:
        """None where the path leads nowhere."""
        if not path:
            return msgspec.structs.replace(self, compression=str(compression))
        groups = list(self.groups)
        for place, group in enumerate(groups):
            if str(place) == path[0]:
                changed = group._compressed(path[1:], compression)
                if changed is not None:
                    groups[place] = changed
                    return msgspec.structs.replace(self, groups=tuple(groups))
        return None


def structure_of(asked: Structure | None, members: Collection[int]) -> Structure | None:
    """How these members exchange where `asked` was asked for; None: all in one ring."""
    fitted = None if asked is None else fit(asked, members)
    return None if fitted is None or fitted.is_flat else fitted


def fit(structure: Structure, workers: Collection[int]) -> Structure:
    """The structure for exactly these workers, whoever of them it was made for.

    Who is not there is taken out: where a leader is missing, the next of its group speaks. Who is new
    goes into the smallest group of workers. It follows from its arguments alone, so a worker that
    comes back gets its old place.
    """
    left = _without_missing(structure, frozenset(workers))
    known = set(structure.workers)
    new = [worker for worker in workers if worker not in known]
    if left is None:
        return msgspec.structs.replace(Structure.flat(new), compression=structure.compression)
    for worker in new:
        left = _with_newcomer(left, worker)
    return left


def _without_missing(structure: Structure, there: frozenset[int]) -> Structure | None:
    if structure.members:
        members = tuple(one for one in structure.members if one in there)
        if not members:
            return None
        leader = structure.leader if structure.leader in there else members[0]
        return msgspec.structs.replace(structure, members=members, leader=leader)
    pairs = [(group, _without_missing(group, there)) for group in structure.groups]
    kept = [(old, new) for old, new in pairs if new is not None]
    if not kept:
        return None
    # The group whose leader led all of them goes on doing so, by whom it is led now.
    leading = next((new for old, new in kept if old.leader == structure.leader), kept[0][1])
    return _merged(structure, leading.leader, tuple(new for _, new in kept))


def _merged(old: Structure, leader: int, groups: tuple[Structure, ...]) -> Structure:
    """The old group with these groups, without levels that hold nothing together."""
    if len(groups) == 1:
        return groups[0]
    if all(len(group.members) == 1 for group in groups):
        members = tuple(group.leader for group in groups)
        return msgspec.structs.replace(old, leader=leader, members=members, groups=())
    return msgspec.structs.replace(old, leader=leader, groups=groups)


def _with_newcomer(structure: Structure, worker: int) -> Structure:
    if structure.members:
        return msgspec.structs.replace(structure, members=(*structure.members, worker))
    sizes = [_smallest(group) for group in structure.groups]
    place = sizes.index(min(sizes))
    groups = list(structure.groups)
    groups[place] = _with_newcomer(groups[place], worker)
    return msgspec.structs.replace(structure, groups=tuple(groups))


def _smallest(structure: Structure) -> int:
    """The size of the smallest group of workers below."""
    if structure.members:
        return len(structure.members)
    return min(_smallest(group) for group in structure.groups)


def _check_nodes(root: GroupPlan, workers_of: Mapping[str, Sequence[int]]) -> None:
    planned = {node for leaf in root.leaves() for node in leaf.members}
    missing, left_out = sorted(planned - set(workers_of)), sorted(set(workers_of) - planned)
    if missing or left_out:
        parts = [f"it also names {', '.join(missing)}"] if missing else []
        parts += [f"it leaves out {', '.join(left_out)}"] if left_out else []
        raise UsageError(
            f"the plan is not one for the nodes of this run: {' and '.join(parts)}; plan for these "
            "nodes, or run with those of the plan"
        )
