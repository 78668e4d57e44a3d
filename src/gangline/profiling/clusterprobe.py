# SPDX-License-Identifier: Apache-2.0
"""Profiles a cluster: this machine, or one that is emulated on it.

What a link costs is measured once per *class* of links, not once per pair. The nodes of an emulated
cluster are all on one host, so there is one class, and two processes measure it, however many nodes
there are: 27 tiny messages and 18 large ones. Computing is measured once and divided by each node's
speed, which is what pacing does to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

from gangline.profiling.cgroups import inspect_cgroups
from gangline.profiling.computing import measure_compute, memory_bytes_per_s, reduce_s_per_byte
from gangline.profiling.machine import inspect_caches, inspect_memory
from gangline.profiling.team import Request, Team, measured_link
from gangline.spec.profile import ClusterProfile, Link, NodeProfile, Zone
from gangline.zoo import build_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.spec.cluster import Cluster, Node


def probe_cluster(
    cluster: Cluster,
    *,
    model: str,
    image_size: int,
    say: Callable[[str], None],
) -> ClusterProfile:
    """Measures computing, memory and links; `say` hears what is going on."""
    workers = cluster.worker_nodes
    threads = max(1, (psutil.cpu_count() or 1) // len(workers))
    say(f"computing: {model}, {threads} threads")
    cost = measure_compute(
        build_model(model, image_size=image_size), (1, image_size, image_size), threads=threads
    )
    say("memory and caches")
    root = Path("/")
    memory = inspect_memory(inspect_cgroups(root))
    room = min(memory.available_bytes, memory.limit_bytes or memory.available_bytes)
    caches = [cache.size_bytes for cache in inspect_caches(root) if cache.level == 2]
    like = NodeProfile(
        name="here",
        fixed_s=cost.fixed_s,
        per_sample_s=cost.per_sample_s,
        spread=cost.spread,
        memory_bytes=room / len(workers),
        reduce_s_per_byte=reduce_s_per_byte(),
        memory_bytes_per_s=memory_bytes_per_s(),
        cache_bytes=caches[0] if caches else None,
    )
    zones = (Zone(place="", link=_probe_link(say)),) if len(workers) > 1 else ()
    return ClusterProfile(
        nodes=tuple(_slower(like, node.speed, name) for node, name in _named(cluster)),
        zones=zones,
        model=model,
    )


def _named(cluster: Cluster) -> list[tuple[Node, str]]:
    return [
        (node, node.name if node.workers == 1 else f"{node.name}.{number}")
        for node in cluster.nodes
        for number in range(node.workers)
    ]


def _slower(like: NodeProfile, speed: float, name: str) -> NodeProfile:
    return msgspec.structs.replace(
        like, name=name, fixed_s=like.fixed_s / speed, per_sample_s=like.per_sample_s / speed
    )


def _probe_link(say: Callable[[str], None]) -> Link:
    """The worse way of both between two processes on this host."""
    say("links: two processes on this host")
    with Team(2) as team:
        there, back = measured_link(team.ask(Request(what="link")))
    return min(there, back, key=lambda link: link.bytes_per_s)
