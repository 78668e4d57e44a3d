# SPDX-License-Identifier: Apache-2.0
"""Profiles a cluster: this machine, or one that is emulated on it.

What a link costs is measured once per *class* of links, not once per pair. The nodes of an emulated
cluster are all on one host, so there is one class, and two processes measure it, however many nodes
there are: 27 tiny messages and 18 large ones. What a cluster file says of links is added to it: they
are emulated as they are asked for. Computing is measured once and divided by each node's speed, which
is what pacing does to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

from gangline.planning.known import known_profile
from gangline.profiling.cgroups import inspect_cgroups
from gangline.profiling.computing import (
    ComputeCost,
    measure_compute,
    memory_bytes_per_s,
    reduce_s_per_byte,
)
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
    cost: ComputeCost | None = None,
) -> ClusterProfile:
    """Measures computing, memory and links; `say` hears what is going on.

    With a `cost`, computing has been measured already, with what `model` names.
    """
    workers = cluster.worker_nodes
    threads = max(1, (psutil.cpu_count() or 1) // len(workers))
    if cost is None:
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
    if len(workers) == 1:
        return ClusterProfile(nodes=(_slower(like, cluster.worker_nodes[0]),), model=model)
    say("links: two processes on this host")
    local = measure_local_link(shared_memory=not cluster.has_network)
    known = known_profile(cluster, local=local)
    nodes = tuple(
        msgspec.structs.replace(_slower(like, node), name=one.name, access=one.access)
        for node, one in zip(workers, known.nodes, strict=True)
    )
    zones = () if known.pairs else (Zone(place="", link=local),)
    return ClusterProfile(nodes=nodes, zones=zones, pairs=known.pairs, model=model)


def _slower(like: NodeProfile, node: Node) -> NodeProfile:
    return msgspec.structs.replace(
        like,
        name=node.name,
        fixed_s=like.fixed_s / node.speed,
        per_sample_s=like.per_sample_s / node.speed,
    )


def measure_local_link(*, shared_memory: bool) -> Link:
    """The worse way of both between two processes on this host; not by memory: by TCP."""
    with Team(2) as team:
        request = Request(what="link", shared_memory=shared_memory)
        there, back = measured_link(team.ask(request))
    return min(there, back, key=lambda link: link.bytes_per_s)
