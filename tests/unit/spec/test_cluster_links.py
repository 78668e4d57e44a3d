# SPDX-License-Identifier: Apache-2.0
"""Links in a cluster file: what they mean, what is refused, and what a profile makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gangline.emulation.islands import address_of, mac_of, plan_network
from gangline.planning.known import known_profile
from gangline.spec.cluster import Cluster, NetworkLink, Node
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

FILE = """\
[[nodes]]
name = "a"
place = "lab/rack1"
bytes_per_s = 12.5e6

[[nodes]]
name = "b"
place = "lab/rack2"

[[nodes]]
name = "c"
place = "home"
delay_s = 0.001

[[links]]
between = ["lab", "home"]
bytes_per_s = 2.5e6
delay_s = 0.02

[[links]]
between = ["b", "home"]
delay_s = 0.1
"""


def read(tmp_path: Path, text: str) -> Cluster:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    return Cluster.from_toml(path)


def test_the_most_exact_link_counts_between_two_nodes(tmp_path: Path) -> None:
    cluster = read(tmp_path, FILE)
    a, b, c = cluster.nodes
    assert cluster.has_network
    assert cluster.link_between(a, b) is None
    assert cluster.link_between(c, a) == cluster.link_between(a, c) == cluster.links[0]
    assert cluster.link_between(b, c) == cluster.links[1]


def test_a_cluster_without_links_has_no_network() -> None:
    assert not Cluster.of_speeds([1.0, 0.5]).has_network
    assert Cluster(nodes=(Node(name="a", bytes_per_s=1e6), Node(name="b"))).has_network


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bytes_per_s = 0\n", "node 'a': bytes_per_s must be finite and above 0, not 0"),
        ("delay_s = -1\n", "node 'a': delay_s must be finite and 0 or more, not -1"),
        ("delay_s = inf\n", "node 'a': delay_s must be finite and 0 or more, not inf"),
        (
            '[[links]]\nbetween = ["a", "x"]\ndelay_s = 1\n',
            "the link between 'a' and 'x' ends at 'x', which is no node and holds none; there are a",
        ),
        (
            '[[links]]\nbetween = ["a", "b"]\n',
            "the link between 'a' and 'b' has neither bytes_per_s nor delay_s",
        ),
        (
            '[[links]]\nbetween = ["lab", "lab/rack"]\ndelay_s = 1\n',
            "the link between 'lab' and 'lab/rack': one end is the other, or inside it",
        ),
        (
            '[[links]]\nbetween = ["a", "b"]\nbytes_per_s = nan\n',
            "the link between 'a' and 'b': bytes_per_s must be finite and above 0, not nan",
        ),
        ('[[links]]\nbetween = ["a"]\ndelay_s = 1\n', "Expected `array` of length 2"),
        ('[[links]]\nbetween = ["a", "b"]\nlatency_s = 1\n', "unknown field `latency_s`"),
    ],
)
def test_a_mistake_in_the_links_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as found:
        read(tmp_path, f'[[nodes]]\nname = "a"\n{text}')
    assert message in str(found.value)


def test_a_link_that_is_there_twice_is_refused() -> None:
    link = NetworkLink(between=("a", "b"), delay_s=1.0)
    again = NetworkLink(between=("b", "a"), delay_s=2.0)
    with pytest.raises(UsageError, match="the link between 'a' and 'b' is there twice"):
        Cluster(nodes=(Node(name="a"), Node(name="b")), links=(link, again))


def test_nodes_that_nothing_lies_between_share_a_switch() -> None:
    cluster = Cluster(
        nodes=(
            Node(name="a", place="x", bytes_per_s=1e6),
            Node(name="b", place="x"),
            Node(name="c", place="y"),
            Node(name="d", place="y", delay_s=0.5),
        ),
        links=(NetworkLink(between=("x", "y"), bytes_per_s=2e6, delay_s=0.25),),
    )
    plan = plan_network(cluster)
    assert plan.islands == ((0, 1), (2,), (3,))
    assert plan.needs_relay
    assert (plan.ways[0, 2].pipe, plan.ways[0, 2].delay_s) == ((0, 0), 0.25)
    assert (plan.ways[3, 1].pipe, plan.ways[3, 1].delay_s) == ((0, 1), 0.75)
    assert (plan.ways[2, 3].pipe, plan.ways[2, 3].delay_s) == (None, 0.5)
    assert (0, 1) not in plan.ways


def test_own_links_alone_need_no_relay() -> None:
    cluster = Cluster(nodes=(Node(name="a", bytes_per_s=1e6), Node(name="b", bytes_per_s=2e6)))
    assert not plan_network(cluster).needs_relay


def test_every_node_has_an_address_of_its_own() -> None:
    assert len({address_of(node) for node in range(1000)}) == 1000
    assert address_of(0) == "198.18.0.10"
    assert address_of(250) == "198.18.1.4"
    assert mac_of(258).hex(":") == "02:67:6c:00:01:02"


def test_a_profile_says_which_pairs_share_a_link(tmp_path: Path) -> None:
    profile = known_profile(read(tmp_path, FILE))
    shared = {(pair.source, pair.target): pair.shared for pair in profile.pairs}
    assert shared == {("a", "b"): "", ("a", "c"): "lab to home", ("b", "c"): "b to home"}
    (access, *_) = (node.access for node in profile.nodes)
    assert access is not None
    assert access.bytes_per_s == 12.5e6
