# SPDX-License-Identifier: Apache-2.0
"""Made-up clusters of any size: sites of racks of unlike nodes, for trying out and for measuring."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.spec.errors import UsageError
from gangline.spec.profile import ClusterProfile, Link, NodeProfile, Zone

if TYPE_CHECKING:
    import numpy as np

RACK = Link(latency_s=10e-6, bytes_per_s=1e10)
SITE = Link(latency_s=100e-6, bytes_per_s=1.2e9)
BETWEEN_SITES = Link(latency_s=10e-3, bytes_per_s=1.2e8)
GENERATIONS = (1.0, 2.0, 4.0, 15.0)
"""How many times as long a sample takes on the kinds of nodes."""


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How large a made-up cluster is."""

    sites: int = 1
    racks: int = 1
    """Per site."""
    nodes: int = 1
    """Per rack."""

    def __post_init__(self) -> None:
        if min(self.sites, self.racks, self.nodes) < 1:
            raise UsageError(
                "a made-up cluster has at least one site, rack and node, not "
                f"sites={self.sites},racks={self.racks},nodes={self.nodes}"
            )

    @classmethod
    def from_text(cls, text: str) -> Shape:
        """Reads `sites=20,racks=50,nodes=100`."""
        try:
            fields = {k.strip(): int(v) for k, v in (p.split("=") for p in text.split(","))}
            return msgspec.convert(fields, cls)
        except (ValueError, msgspec.ValidationError) as error:
            raise UsageError(
                f"the shape {text!r} is not usable ({error}); write sites=20,racks=50,nodes=100"
            ) from None


def synthesize(shape: Shape, *, rng: np.random.Generator) -> ClusterProfile:
    """A profile in which every rack holds one kind of node, and no two nodes are quite alike."""
    zones = [Zone(place="", link=BETWEEN_SITES)]
    nodes = []
    for site in range(shape.sites):
        zones.append(Zone(place=f"s{site}", link=SITE))
        for rack in range(shape.racks):
            place = f"s{site}/r{rack}"
            zones.append(Zone(place=place, link=RACK))
            kind = float(rng.choice(GENERATIONS))
            noise = rng.lognormal(sigma=0.1, size=shape.nodes).tolist()
            nodes += [
                NodeProfile(
                    name=f"{place}/n{number}",
                    place=place,
                    fixed_s=2e-3 * kind,
                    per_sample_s=1e-3 * kind * factor,
                    memory_bytes=64e9,
                    reduce_s_per_byte=2e-10,
                )
                for number, factor in enumerate(noise)
            ]
    return ClusterProfile(nodes=tuple(nodes), zones=tuple(zones), model="synthetic")
