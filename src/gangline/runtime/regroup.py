# SPDX-License-Identifier: Apache-2.0
"""What the members of a new group do first: find out who is furthest, and all become like it.

The furthest member is the truth: what it has committed was summed over everybody's samples, so the
others need its result, not a second try. Members at the same position are bit-equal already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gangline.collectives import gather_bytes
from gangline.runtime.handshake import compare, copy_value, copy_value_to
from gangline.runtime.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.collectives import Group
    from gangline.runtime.handshake import Introduction
    from gangline.runtime.resuming import Start
    from gangline.runtime.snapshot import Snapshot

Results = dict[tuple[Any, ...], Any]
"""What collective calls outside of steps returned lately."""


class Truth(NamedTuple):
    """Where the whole group stands, after the members became alike."""

    position: Position
    results: Results
    was_behind: bool
    """Whether this member had to copy."""
    num_behind: int


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
    own_place = (int(has_state), *position)
    places = [
        tuple(msgspec.msgpack.decode(payload))
        for payload in gather_bytes(group, msgspec.msgpack.encode(own_place))
    ]
    is_held, *furthest_place = max(places)
    furthest = Position(*furthest_place)
    if not is_held:
        start = found_anew(group)
        snapshot.take()
        return Truth(start.position, dict(start.orders), was_behind=True, num_behind=group.size)
    root = places.index((is_held, *furthest_place))
    num_behind = sum(one != places[root] for one in places)
    if num_behind == 0:
        return Truth(position, results, was_behind=False, num_behind=0)
    results = copy_value(group, results if group.rank == root else None, root=root)
    behind = [rank for rank, one in enumerate(places) if one != places[root]]
    own = snapshot.export() if group.rank == root else None
    state = copy_value_to(group, own, root=root, to=behind)
    was_behind = own_place != places[root]
    if was_behind:
        snapshot.load(state)
    return Truth(furthest, results, was_behind=was_behind, num_behind=num_behind)
