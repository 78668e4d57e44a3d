# SPDX-License-Identifier: Apache-2.0
"""A profile as arrays: what every node computes, holds, and reaches the others by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.planning.allocation.bounds import Floats, Shares
from gangline.planning.cost.places import Places, find_places
from gangline.spec.profile import Link

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gangline.spec.profile import ClusterProfile
    from gangline.spec.workload import Workload


class Network(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The nodes of a profile, as one workload meets them; one entry per node in each array."""

    names: tuple[str, ...]
    fixed_s: Floats
    per_sample_s: Floats
    reduce_s_per_byte: Floats
    access_latency_s: Floats
    """0 where a node's own link is not known."""
    access_bytes_per_s: Floats
    """Infinite where a node's own link is not known."""
    max_samples: Shares
    """The greatest share that fits into memory; below 0 where not even the model does."""
    pairs: Mapping[tuple[int, int], Link]
    """Links that were measured one by one, the worse way of both; the lower node first."""
    ways: Mapping[tuple[int, int], str]
    """The names of links that several pairs share; the lower node first."""
    places: Places

    def way(self, first: int, second: int) -> str:
        """The link that these two share with other pairs; empty where there is none."""
        return self.ways.get((min(first, second), max(first, second)), "")

    def hop(self, first: int, second: int) -> tuple[float, float]:
        """Latency and bandwidth between two nodes."""
        link = self.pairs.get((min(first, second), max(first, second)))
        if link is not None:
            return link.latency_s, link.bytes_per_s
        of_node = self.places.of_node
        place = self.places.meeting_place(int(of_node[first]), int(of_node[second]))
        ends = [first, second]
        return (
            max(float(self.places.latency_s[place]), *self.access_latency_s[ends]),
            min(float(self.places.bytes_per_s[place]), *self.access_bytes_per_s[ends]),
        )

    def cost_at(self, samples: float) -> Floats:
        """Seconds of each node for so many samples."""
        return np.asarray(self.fixed_s + self.per_sample_s * samples)


def resolve(profile: ClusterProfile, workload: Workload) -> Network:
    """The profile as this workload meets it."""
    nodes = profile.nodes
    number = {node.name: i for i, node in enumerate(nodes)}
    pairs, ways = {}, {}
    for pair in profile.pairs:
        first, second = sorted((number[pair.source], number[pair.target]))
        pairs[first, second] = pair.worst
        if pair.shared:
            ways[first, second] = pair.shared
    access = [node.access for node in nodes]
    return Network(
        names=tuple(node.name for node in nodes),
        fixed_s=np.array([node.fixed_s for node in nodes]),
        per_sample_s=np.array([node.per_sample_s for node in nodes]) * workload.operation_ratio,
        reduce_s_per_byte=np.array([node.reduce_s_per_byte for node in nodes]),
        access_latency_s=np.array([0.0 if link is None else link.latency_s for link in access]),
        access_bytes_per_s=np.array(
            [np.inf if link is None else link.bytes_per_s for link in access]
        ),
        max_samples=_ceilings(profile, workload),
        pairs=pairs,
        ways=ways,
        places=find_places(profile, pairs, num_bytes=message_bytes(workload)),
    )


def message_bytes(workload: Workload) -> float:
    """The size of one unit on a link."""
    return workload.gradient_bytes * workload.compression / workload.num_units


def _ceilings(profile: ClusterProfile, workload: Workload) -> NDArray[np.int64]:
    memory = np.array(
        [np.inf if node.memory_bytes is None else node.memory_bytes for node in profile.nodes]
    )
    left = memory - workload.resident_bytes
    if workload.sample_bytes > 0:
        left = left / workload.sample_bytes
    else:
        left = np.where(left >= 0, workload.global_batch, -1)
    return np.clip(np.floor(left), -1, workload.global_batch).astype(np.int64)
