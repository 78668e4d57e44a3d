# SPDX-License-Identifier: Apache-2.0
"""Whether groups should train at their own pace, and which groups: from what is known of links.

Decided before anything is computed, so that steps cannot be compared with exchanges: an exchange that
takes longer than most steps of small models do is taken to be worth avoiding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gangline.spec.exchange.structure import RING, Structure
from gangline.spec.sync import FLEXIBLE, IN_STEP, Sync

if TYPE_CHECKING:
    from gangline.spec.profile import ClusterProfile


SLOW_EXCHANGE_S = 0.05
"""`auto`: groups train apart where exchanging a gradient takes longer than this."""


class SyncChoice(NamedTuple):
    """How tightly workers are to be held together, and why."""

    sync: Sync
    reason: str
    exchange_s: float


def choose_sync(profile: ClusterProfile | None, gradient_bytes: int, *, levels: int) -> SyncChoice:
    """`full` or `flexible`, by the time that a gradient takes over the slowest known link."""
    pairs = () if profile is None else profile.pairs
    # A ring sends every gradient out and back, half of it each way per member of two.
    exchange_s = max(
        (2 * pair.there.latency_s + gradient_bytes / pair.there.bytes_per_s for pair in pairs),
        default=0.0,
    )
    if exchange_s > SLOW_EXCHANGE_S:
        reason = (
            f"a gradient takes {exchange_s:.3g} s over the slowest link, more than "
            f"{SLOW_EXCHANGE_S:g} s: groups train at their own pace"
        )
        return SyncChoice(Sync(kind=FLEXIBLE, levels=levels), reason, exchange_s)
    known = "no link is known" if not pairs else f"a gradient takes {exchange_s:.3g} s at most"
    return SyncChoice(IN_STEP, f"{known}: all workers stay in step", exchange_s)


def groups_by_place(profile: ClusterProfile) -> Structure | None:
    """A ring in every place that the profile names, and one across; None where that is no grouping."""
    places: dict[str, list[int]] = {}
    for worker, node in enumerate(profile.nodes):
        places.setdefault(node.place or node.name, []).append(worker)
    if len(places) < 2 or len(places) == len(profile.nodes):
        return None
    groups = tuple(
        Structure(topology=RING, leader=workers[0], members=tuple(workers))
        for workers in places.values()
    )
    return Structure(topology=RING, leader=groups[0].leader, groups=groups)
