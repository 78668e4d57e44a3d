# SPDX-License-Identifier: Apache-2.0
"""The outlook: what a running job knows of itself that a plan can be made from.

What the workers compute is measured while they train. What they exchange is told by the job, and what
lies between them by whoever started it.
"""

from __future__ import annotations

import msgspec

from gangline.spec.profile import ClusterProfile, Link, NodeProfile
from gangline.spec.workload import Workload

LOCAL_LINK = Link(latency_s=50e-6, bytes_per_s=2e9)
"""Between two processes of one host, where nobody measured it."""


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """A job's size, and the cluster that it runs on."""

    workload: Workload
    profile: ClusterProfile
    """One node per worker, in the order of their numbers."""

    @property
    def knows_links(self) -> bool:
        """Whether anything was said about links. Otherwise nothing says that they differ."""
        profile = self.profile
        has_access = any(node.access is not None for node in profile.nodes)
        return bool(profile.zones or profile.pairs) or has_access

    def node_of(self, worker: int) -> NodeProfile:
        """What is known of a worker's node; nothing of who joined later but its name."""
        nodes = self.profile.nodes
        if worker < len(nodes):
            return nodes[worker]
        return NodeProfile(name=f"worker {worker}", per_sample_s=1.0)
