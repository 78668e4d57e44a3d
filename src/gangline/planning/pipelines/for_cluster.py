# SPDX-License-Identifier: Apache-2.0
"""Pipelines over the nodes of a profile, for a workload whose layers are known: before any run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.planning.cost.network import resolve
from gangline.planning.pipelines.layout import best_layout
from gangline.spec.errors import UsageError
from gangline.spec.pipelines import Links, Machine, Pace
from gangline.spec.profile import Link

if TYPE_CHECKING:
    from gangline.planning.pipelines.single import Asked, Solution
    from gangline.spec.pipelines import Layout
    from gangline.spec.profile import ClusterProfile, NodeProfile
    from gangline.spec.workload import Workload

MOST_NODES = 16
_FORWARD = 1 / 3
"""The forward pass is about a third of the computing."""


def plan_pipelines(
    profile: ClusterProfile, workload: Workload, *, asked: Asked | None = None
) -> tuple[Layout, tuple[Solution, ...]]:
    """The layout of pipelines whose step is fastest on these nodes."""
    if not workload.layers:
        raise UsageError(
            "the workload has no layers, so it is not known where its model can be cut"
        )
    if len(profile.nodes) > MOST_NODES:
        raise UsageError(
            f"pipelines are planned over at most {MOST_NODES} nodes, not {len(profile.nodes)}: give a "
            "profile of those that may share a model"
        )
    machines = [_machine(node, workload) for node in profile.nodes]
    links = _links(profile, workload)
    return best_layout(workload.layers, machines, workload.global_batch, asked=asked, links=links)


def _machine(node: NodeProfile, workload: Workload) -> Machine:
    def paces(part_of: float) -> tuple[Pace, ...]:
        each = node.per_sample_s * workload.operation_ratio * part_of
        return tuple(
            Pace(fixed_s=node.fixed_s * part_of * layer.part, sample_s=each * layer.part)
            for layer in workload.layers
        )

    return Machine(
        name=node.name,
        forward=paces(_FORWARD),
        backward=paces(1 - _FORWARD),
        memory_bytes=node.memory_bytes,
    )


def _links(profile: ClusterProfile, workload: Workload) -> Links:
    network = resolve(profile, workload)
    pairs = {}
    for high, second in enumerate(network.names):
        for low, first in enumerate(network.names[:high]):
            latency_s, bytes_per_s = network.hop(low, high)
            names = " ".join(sorted((first, second)))
            pairs[names] = Link(latency_s=latency_s, bytes_per_s=min(bytes_per_s, 1e18))
    return Links(pairs=pairs)
