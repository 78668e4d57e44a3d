# SPDX-License-Identifier: Apache-2.0
"""Eight emulated clusters, each unlike in another way: speeds, links, or both.

A gradient of LeNet-5 has 247 kB. At 12.5 MB/s (100 Mbit/s) it takes 20 ms to send, so that exchanging
costs about as much as computing, and a bad choice shows.
"""

from __future__ import annotations

from gangline.spec.cluster import Cluster, NetworkLink, Node

FAST, SITE, SLOW, FIELD = 25e6, 12.5e6, 2.5e6, 1.25e6
"""Bytes per second: 200, 100, 20 and 10 Mbit/s."""


def _nodes(
    place: str, speeds: list[float], *, bytes_per_s: float = SITE, delay_s: float = 0.0
) -> tuple[Node, ...]:
    return tuple(
        Node(
            name=f"{place}{number}",
            place=place,
            speed=speed,
            bytes_per_s=bytes_per_s,
            delay_s=delay_s,
        )
        for number, speed in enumerate(speeds)
    )


def _link(first: str, second: str, bytes_per_s: float, delay_s: float) -> NetworkLink:
    return NetworkLink(between=(first, second), bytes_per_s=bytes_per_s, delay_s=delay_s)


CLUSTERS: dict[str, Cluster] = {
    "even": Cluster(nodes=_nodes("n", [1.0] * 4)),
    "one_slow_node": Cluster(nodes=_nodes("n", [1.0, 1.0, 1.0, 0.1])),
    "two_speeds": Cluster(nodes=_nodes("quick", [1.0] * 3) + _nodes("slow", [0.4] * 3)),
    "two_sites": Cluster(
        nodes=_nodes("here", [1.0] * 3, bytes_per_s=FAST)
        + _nodes("there", [1.0] * 3, bytes_per_s=FAST),
        links=(_link("here", "there", SLOW, 0.005),),
    ),
    "three_tiers": Cluster(
        nodes=_nodes("core", [1.0] * 2, bytes_per_s=FAST)
        + _nodes("edge", [0.5] * 2)
        + _nodes("field", [0.2] * 3),
        links=(
            _link("core", "edge", 5e6, 0.002),
            _link("core", "field", FIELD, 0.01),
            _link("edge", "field", FIELD, 0.01),
        ),
    ),
    "star": Cluster(
        nodes=_nodes("hub", [1.0], bytes_per_s=50e6)
        + _nodes("leaf", [1.0] * 5, bytes_per_s=10e6, delay_s=0.004)
    ),
    "one_bad_link": Cluster(
        nodes=_nodes("n", [1.0] * 5), links=(_link("n1", "n2", FIELD / 2, 0.01),)
    ),
    "paper_table_1": Cluster(
        nodes=_nodes("intel", [1.0] * 2, bytes_per_s=FAST)
        + _nodes("ryzen", [0.8] * 2, bytes_per_s=FAST)
        + _nodes("armv8", [0.1] * 2)
        + _nodes("armv7", [0.05] * 2),
        links=(
            _link("intel", "ryzen", SITE, 0.0005),
            _link("intel", "armv8", FIELD, 0.01),
            _link("intel", "armv7", FIELD, 0.01),
            _link("ryzen", "armv8", FIELD, 0.01),
            _link("ryzen", "armv7", FIELD, 0.01),
        ),
    ),
}
"""Paper 000's table I has 14 nodes in four groups; here each group has two."""
