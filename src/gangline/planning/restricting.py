# SPDX-License-Identifier: Apache-2.0
"""A profile of some of its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.spec.profile import ClusterProfile, NodeProfile


def restricted(profile: ClusterProfile, nodes: Sequence[NodeProfile]) -> ClusterProfile:
    """The profile with these nodes alone, and what it knows of the links between them."""
    names = {node.name for node in nodes}
    places = {place for node in nodes for place in _around(node.place)}
    return msgspec.structs.replace(
        profile,
        nodes=tuple(nodes),
        zones=tuple(zone for zone in profile.zones if zone.place in places),
        pairs=tuple(p for p in profile.pairs if p.source in names and p.target in names),
    )


def _around(place: str) -> list[str]:
    """The place and all that hold it, up to the whole cluster."""
    parts = place.split("/") if place else []
    return ["/".join(parts[:count]) for count in range(len(parts) + 1)]
