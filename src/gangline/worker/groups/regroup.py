# SPDX-License-Identifier: Apache-2.0
"""What the members of a new group do first: find out who is furthest, and all become like it.

The furthest member is the truth: what it has committed was summed over everybody's samples, so the
others need its result, not a second try. Members at the same position are bit-equal already, once
they have caught up in what is done beside the steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gangline.collectives import gather_bytes
from gangline.spec.position import ORDER, Position
from gangline.worker.prepare.handshake import compare, copy_value, copy_value_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.collectives import Group
    from gangline.worker.checkpoint.resuming import Start
    from gangline.worker.groups.snapshot import Snapshot
    from gangline.worker.prepare.handshake import Introduction

Results = dict[tuple[Any, ...], Any]
"""What collective calls outside of steps returned lately."""


class Truth(NamedTuple):
    """Where the whole group stands, after the members became alike."""

    position: Position
    results: Results
    was_behind: bool
    """Whether this member had to copy."""
    num_behind: int


class _Standing(NamedTuple):
    """How far a member is. Among those at one position it says who knows the epoch's order already."""

    has_state: bool
    """Whether it has the job's state: a newcomer has none yet."""
    position: Position
    stage: int
    """How far it is in what is done beside the steps."""
    orders: list[int]
    """The epochs whose orders it knows."""


def _stand(position: Position, results: Results, *, has_state: bool, stage: int) -> bytes:
    orders = sorted(key[1] for key in results if key[0] == ORDER)
    return msgspec.msgpack.encode((has_state, position, stage, orders))


def become_alike(
    group: Group,
    introduction: Introduction,
    snapshot: Snapshot,
    *,
    position: Position,
    results: Results,
    has_state: bool = True,
    found_anew: Callable[[Group], Start],
) -> Truth:
    """Compares the members, and gives all of them the state of the furthest.

    A newcomer has no state of the job yet. If nobody has it, they `found_anew`.
    """
    compare(group, introduction)
    own_standing = _stand(position, results, has_state=has_state, stage=snapshot.stage)
    standings = [
        _Standing(has_one, Position(*place), stage, orders)
        for has_one, place, stage, orders in map(
            msgspec.msgpack.decode, gather_bytes(group, own_standing)
        )
    ]
    first = max(standings)
    if not first.has_state:
        start = found_anew(group)
        snapshot.load_gradients(start.gradients)
        snapshot.take()
        return Truth(start.position, dict(start.orders), was_behind=True, num_behind=group.size)
    places = [(standing.has_state, standing.position) for standing in standings]
    root, furthest = standings.index(first), first.position
    behind = [rank for rank, one in enumerate(places) if one != places[root]]
    if any(standing != first for standing in standings):
        results = copy_value(group, results if group.rank == root else None, root=root)
    if group.rank not in behind:
        snapshot.catch_up(first.stage)
    if not behind:
        return Truth(position, results, was_behind=False, num_behind=0)
    own = snapshot.export() if group.rank == root else None
    state = copy_value_to(group, own, root=root, to=behind)
    was_behind = group.rank in behind
    if was_behind:
        snapshot.load(state)
    return Truth(furthest, results, was_behind=was_behind, num_behind=len(behind))
