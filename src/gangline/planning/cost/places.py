# SPDX-License-Identifier: Apache-2.0
"""Where nodes are: a tree of places, each with the link between what it holds.

The tree comes from the profile's zones, or, where there are only links measured one by one, from those:
nodes that reach each other by links of the least magnitude are one place, and so on up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from gangline.planning.allocation.bounds import Floats
from gangline.planning.cost.scales import magnitude_classes
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gangline.spec.profile import ClusterProfile, Link

ROOT = 0
"""The number of the place that holds all others."""


class Places(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The tree. A place's parent has a lower number than the place itself."""

    names: tuple[str, ...]
    parent: tuple[int, ...]
    """-1 for the root."""
    latency_s: Floats
    """Between what a place holds; NaN where nothing connects it."""
    bytes_per_s: Floats
    of_node: NDArray[np.int64]
    """The place of each node."""

    def path(self, place: int) -> list[int]:
        """The place and those around it, up to the root."""
        found = [place]
        while (place := self.parent[place]) >= 0:
            found.append(place)
        return found

    def meeting_place(self, first: int, second: int) -> int:
        """The least place that holds both."""
        around = set(self.path(first))
        return next(place for place in self.path(second) if place in around)

    def crossed(self, nodes: NDArray[np.int64]) -> dict[int, int]:
        """The places whose links a ring needs that goes through all these nodes, place by place.

        With each comes how many links of the ring are its: a place of k parts is crossed k − 1 times,
        and once more where the ring closes.
        """
        here, direct = np.unique(self.of_node[nodes], return_counts=True)
        parts = dict(zip(here.tolist(), direct.tolist(), strict=True))
        pending = set(parts)
        # Children have higher numbers than their parents, so each place comes after all it holds.
        while pending:
            place = max(pending)
            pending.discard(place)
            parent = self.parent[place]
            if parent >= 0:
                parts[parent] = parts.get(parent, 0) + 1
                pending.add(parent)
        links = {place: count - 1 for place, count in sorted(parts.items()) if count >= 2}
        if links:
            links[min(links)] += 1
        return links

    def components(self) -> NDArray[np.int64]:
        """The connected part of the cluster that each node belongs to."""
        part = np.zeros(len(self.names), dtype=np.int64)
        num_parts = 1
        for place in range(1, len(self.names)):
            if np.isnan(self.latency_s[self.parent[place]]):
                part[place], num_parts = num_parts, num_parts + 1
            else:
                part[place] = part[self.parent[place]]
        found = part[self.of_node]
        lonely = np.isnan(self.latency_s[self.of_node])
        found[lonely] = num_parts + np.arange(lonely.sum())
        return found


def find_places(
    profile: ClusterProfile, pairs: Mapping[tuple[int, int], Link], *, num_bytes: float
) -> Places:
    """The tree of a profile; `pairs` are its measured links by node numbers, the lower first."""
    if profile.zones or not pairs:
        places = _from_zones(profile)
    else:
        places = _from_pairs(profile, pairs, num_bytes=num_bytes)
    return _with_links(places, profile, pairs)


def _from_zones(profile: ClusterProfile) -> Places:
    number: dict[str, int] = {"": ROOT}
    parent = [-1]

    def number_of(place: str) -> int:
        if place not in number:
            above = number_of(place.rpartition("/")[0])
            number[place] = len(parent)
            parent.append(above)
        return number[place]

    of_node = [number_of(node.place) for node in profile.nodes]
    for zone in profile.zones:
        if zone.place not in number:
            raise UsageError(
                f"the zone {zone.place!r} holds no node; the nodes are at "
                f"{_some(sorted({node.place for node in profile.nodes}))}"
            )
    return _unlinked(tuple(number), tuple(parent), of_node)


def _from_pairs(
    profile: ClusterProfile, pairs: Mapping[tuple[int, int], Link], *, num_bytes: float
) -> Places:
    """Single linkage, one level per magnitude: a bad link inside a good cluster does not split it."""
    ends = np.array(list(pairs))
    classes = magnitude_classes([link.time_s(num_bytes) for link in pairs.values()])
    joined = np.arange(len(profile.nodes))
    levels = []
    for magnitude in range(int(classes.max()) + 1):
        joined = _join(joined, ends[classes == magnitude])
        levels.append(joined)
    if joined.max() > 0:
        levels.append(np.zeros_like(joined))
    return _nested(levels[::-1], [node.name for node in profile.nodes])


def _nested(levels: Sequence[NDArray[np.int64]], nodes: Sequence[str]) -> Places:
    """A place for every set of a partition that is not the whole of the set around it."""
    names, parent = ["all"], [-1]
    of_node = np.zeros(len(nodes), dtype=np.int64)
    for level in levels[1:]:
        outer = of_node.copy()
        for label in np.unique(level):
            inside = np.flatnonzero(level == label)
            around = int(outer[inside[0]])
            if 1 < len(inside) < np.count_nonzero(outer == around):
                of_node[inside] = len(names)
                names.append(f"around {nodes[int(inside[0])]}")
                parent.append(around)
    return _unlinked(tuple(names), tuple(parent), of_node)


def _join(labels: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """The labels after everything that an edge connects has become one; counted from 0."""
    root = list(range(int(labels.max()) + 1))

    def find(label: int) -> int:
        while root[label] != label:
            root[label] = root[root[label]]
            label = root[label]
        return label

    for first, second in labels[edges].tolist():
        low, high = sorted((find(first), find(second)))
        root[high] = low
    merged = np.array([find(label) for label in root])[labels]
    return np.asarray(np.unique(merged, return_inverse=True)[1], dtype=np.int64).reshape(-1)


def _unlinked(names: tuple[str, ...], parent: tuple[int, ...], of_node: Iterable[int]) -> Places:
    unknown = np.full(len(names), np.nan)
    return Places(
        names=names,
        parent=parent,
        latency_s=unknown,
        bytes_per_s=unknown,
        of_node=np.asarray(list(of_node), dtype=np.int64),
    )


def _with_links(
    places: Places, profile: ClusterProfile, pairs: Mapping[tuple[int, int], Link]
) -> Places:
    """The link of a place: its zone's, or the median of its pairs, or that of the place around it."""
    latency, speed = places.latency_s.copy(), places.bytes_per_s.copy()
    measured: dict[int, list[Link]] = {}
    for (first, second), link in pairs.items():
        ends = int(places.of_node[first]), int(places.of_node[second])
        measured.setdefault(places.meeting_place(*ends), []).append(link)
    for place, links in measured.items():
        latency[place] = float(np.median([link.latency_s for link in links]))
        speed[place] = float(np.median([link.bytes_per_s for link in links]))
    number = {name: place for place, name in enumerate(places.names)}
    for zone in profile.zones:
        place = number[zone.place]
        latency[place], speed[place] = zone.link.latency_s, zone.link.bytes_per_s
    for place, around in enumerate(places.parent):
        if around >= 0 and np.isnan(latency[place]):
            latency[place], speed[place] = latency[around], speed[around]
    return msgspec.structs.replace(places, latency_s=latency, bytes_per_s=speed)


def _some(values: Sequence[str], *, most: int = 5) -> str:
    shown = ", ".join(map(repr, values[:most]))
    return f"{shown} and {len(values) - most} more" if len(values) > most else shown
