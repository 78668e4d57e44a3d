# SPDX-License-Identifier: Apache-2.0
"""Makes the groups of a tree that one member is in, from its own group upwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gangline.collectives.hierarchy.group import SEGMENT_BYTES, TreeGroup
from gangline.collectives.hierarchy.levels import Level, level_of
from gangline.collectives.hierarchy.pairs import Pairs
from gangline.collectives.hierarchy.seats import seats_of
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.collectives.protocol import Group, GroupKey
    from gangline.spec.exchange.address import WireAddress
    from gangline.spec.exchange.structure import Structure


class Connector(Protocol):
    """What makes a plain group: a transport."""

    def connect(self, key: GroupKey, *, rank: int, addresses: Sequence[WireAddress]) -> Group: ...

    def cancel(self, key: GroupKey) -> None:
        """Breaks off a `connect` for this group, from another thread; others are left alone."""
        ...


def connect_tree(
    key: GroupKey,
    *,
    structure: Structure,
    rank: int,
    addresses: Sequence[WireAddress],
    connector: Connector,
    segment_bytes: int = SEGMENT_BYTES,
) -> TreeGroup:
    """Joins the tree as member `rank`; the structure's workers are ranks, the addresses in their order.

    Returns when this member's own groups are there. That others could not make theirs is learnt at
    the first exchange. All members need the same `segment_bytes`.
    """
    size = len(addresses)
    if set(structure.workers) != set(range(size)):
        raise UsageError(
            f"a structure for {size} members holds the ranks 0 to {size - 1}, "
            f"not {sorted(structure.workers)}"
        )
    levels: list[Level] = []
    try:
        for seat in seats_of(structure, rank):
            group = connector.connect(
                key._replace(level=seat.name),
                rank=seat.place,
                addresses=[addresses[one] for one in seat.speakers],
            )
            levels.append(level_of(seat, group, seed=key.view))
    except BaseException:
        for level in levels:
            level.group.close()
        raise
    pairs = Pairs(key, rank=rank, addresses=addresses, connector=connector)
    return TreeGroup(
        key, rank=rank, size=size, levels=levels, pairs=pairs, segment_bytes=segment_bytes
    )
