# SPDX-License-Identifier: Apache-2.0
"""What is believed of links, beyond what was said of them when the job began."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.spec.profile import ClusterProfile, Link, NodeProfile, PairLink

if TYPE_CHECKING:
    from collections.abc import Mapping


def slowed(profile: ClusterProfile, factor: float) -> ClusterProfile:
    """All links so many times as slow."""
    return msgspec.structs.replace(
        profile,
        nodes=tuple(_with_access(node, factor) for node in profile.nodes),
        zones=tuple(
            msgspec.structs.replace(zone, link=_slower(zone.link, factor)) for zone in profile.zones
        ),
        pairs=tuple(_slower_pair(pair, factor) for pair in profile.pairs),
    )


def slowed_by(profile: ClusterProfile, factors: Mapping[str, float]) -> ClusterProfile:
    """The links of some nodes so many times as slow, and of nobody else."""
    if not factors:
        return profile
    zones = {zone.place: zone.link for zone in profile.zones}

    def troubled(node: NodeProfile) -> NodeProfile:
        link = node.access or _zone_link(node.place, zones)
        if node.name not in factors or link is None:
            return node
        return msgspec.structs.replace(node, access=_slower(link, factors[node.name]))

    def troubled_pair(pair: PairLink) -> PairLink:
        return _slower_pair(pair, max(factors.get(pair.source, 1.0), factors.get(pair.target, 1.0)))

    return msgspec.structs.replace(
        profile,
        nodes=tuple(map(troubled, profile.nodes)),
        pairs=tuple(map(troubled_pair, profile.pairs)),
    )


def guessed_pairs(profile: ClusterProfile) -> tuple[PairLink, ...]:
    """Of who joined later nobody knows a link: it is taken for as slow as the slowest known one."""
    known = {name for pair in profile.pairs for name in (pair.source, pair.target)}
    new = [node.name for node in profile.nodes if node.name not in known]
    slowest = min((pair.worst for pair in profile.pairs), key=lambda link: link.bytes_per_s)
    earlier = sorted(known)
    guessed = []
    for name in new:
        guessed += [PairLink(source=name, target=other, there=slowest) for other in earlier]
        earlier.append(name)
    return tuple(guessed)


def _zone_link(place: str, zones: Mapping[str, Link]) -> Link | None:
    """The link of the least place around a node that has one."""
    while place and place not in zones:
        place = place.rpartition("/")[0]
    return zones.get(place)


def _with_access(node: NodeProfile, factor: float) -> NodeProfile:
    if node.access is None:
        return node
    return msgspec.structs.replace(node, access=_slower(node.access, factor))


def _slower_pair(pair: PairLink, factor: float) -> PairLink:
    back = None if pair.back is None else _slower(pair.back, factor)
    return msgspec.structs.replace(pair, there=_slower(pair.there, factor), back=back)


def _slower(link: Link, factor: float) -> Link:
    return msgspec.structs.replace(
        link, latency_s=link.latency_s * factor, bytes_per_s=link.bytes_per_s / factor
    )
