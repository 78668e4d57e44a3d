# SPDX-License-Identifier: Apache-2.0
"""What the nodes of a loop say of themselves when they meet, and what all conclude from it."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

import msgspec

from gangline.mapreduce.nodes.handout import Range
from gangline.mapreduce.result import Failure
from gangline.spec.exchange.address import WireAddress

if TYPE_CHECKING:
    from collections.abc import Sequence


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of itself when all meet."""

    worker: int
    address: WireAddress
    nonce: str
    """By which the groups of the next round are named, if this node hands out."""
    done: list[Range] = []
    busy_s: float = 0.0
    error: str = ""
    """What ends the loop everywhere."""
    failures: list[Failure] = []
    num_failed: int = 0


def chosen(listings: Sequence[Listing]) -> dict[Range, int]:
    """Whose result is taken for which rows: ranges that do not overlap, and the place of who has each.

    The first node's are taken before the second's, and so on: the same on all nodes.
    """
    taken: list[Range] = []
    places: dict[Range, int] = {}
    for place, listing in enumerate(listings):
        for start, stop in listing.done:
            at = bisect.bisect(taken, (start, stop))
            is_free = at == len(taken) or stop <= taken[at][0]
            if is_free and (at == 0 or taken[at - 1][1] <= start):
                taken.insert(at, (start, stop))
                places[(start, stop)] = place
    return {rows: places[rows] for rows in taken}
