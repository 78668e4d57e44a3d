# SPDX-License-Identifier: Apache-2.0
"""Profiles and workloads: what a file may say, and what is wrong with it."""

from __future__ import annotations

import json

import pytest

from gangline.spec.errors import LogError, UsageError
from gangline.spec.plan import GroupPlan, Plan
from gangline.spec.profile import ClusterProfile, Link, NodeProfile, PairLink
from gangline.spec.workload import Workload

LINK = {"latency_s": 1e-4, "bytes_per_s": 1e8}
NODE = {"name": "n0", "per_sample_s": 1e-3}


def read(tmp_path, **document):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(document))
    return ClusterProfile.from_file(path)


def test_a_profile_survives_its_file(tmp_path):
    link = Link(latency_s=1e-4, bytes_per_s=1e8, spread=0.1)
    profile = ClusterProfile(
        nodes=(
            NodeProfile(name="a", per_sample_s=1e-3, access=link),
            NodeProfile(name="b", per_sample_s=2e-3, memory_bytes=1e9),
        ),
        pairs=(PairLink(source="a", target="b", there=link),),
    )
    path = tmp_path / "profile.json"
    path.write_bytes(profile.to_json())
    assert ClusterProfile.from_file(path) == profile
    assert "reduce_s_per_byte" not in path.read_text()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"nodes": []}, "needs at least one node"),
        ({"nodes": [{"name": "n0"}]}, "missing required field `per_sample_s`"),
        ({"nodes": [{**NODE, "per_sample_s": -1}]}, "per_sample_s must be finite and above 0"),
        ({"nodes": [{**NODE, "per_sample_s": 1e999}]}, "not usable"),
        ({"nodes": [{**NODE, "fixed_s": -1}]}, "fixed_s must be finite and 0 or more, not -1"),
        ({"nodes": [{**NODE, "memory_bytes": 0}]}, "memory_bytes must be finite and above 0"),
        ({"nodes": [{**NODE, "spede": 0}]}, "unknown field `spede`"),
        ({"nodes": [NODE, NODE]}, "node names must differ; used more than once: 'n0'"),
        ({"nodes": [NODE], "zones": [{"place": "", "link": LINK}] * 2}, "places of zones must"),
        (
            {"nodes": [NODE], "zones": [{"place": "", "link": {**LINK, "bytes_per_s": 0}}]},
            "finite bytes_per_s above 0",
        ),
        (
            {"nodes": [NODE], "pairs": [{"source": "n0", "target": "x", "there": LINK}]},
            "'x', which is no node of the profile",
        ),
        (
            {"nodes": [NODE], "pairs": [{"source": "n0", "target": "n0", "there": LINK}]},
            "to itself is no link",
        ),
    ],
)
def test_what_is_wrong_with_a_profile_is_named(tmp_path, document, message):
    with pytest.raises(LogError, match=message):
        read(tmp_path, **document)


def test_a_link_given_twice_is_refused(tmp_path):
    nodes = [NODE, {**NODE, "name": "n1"}]
    pairs = [
        {"source": "n0", "target": "n1", "there": LINK},
        {"source": "n1", "target": "n0", "there": LINK},
    ]
    with pytest.raises(LogError, match="is there twice, so that they may disagree"):
        read(tmp_path, nodes=nodes, pairs=pairs)


def test_a_missing_profile_is_named(tmp_path):
    with pytest.raises(LogError, match=r"cannot read the profile .*nowhere.json: No such file"):
        ClusterProfile.from_file(tmp_path / "nowhere.json")


def test_the_worse_way_counts():
    pair = PairLink(
        source="a",
        target="b",
        there=Link(latency_s=1e-3, bytes_per_s=1e9),
        back=Link(latency_s=1e-4, bytes_per_s=1e8),
    )
    assert pair.worst == Link(latency_s=1e-3, bytes_per_s=1e8)


def test_a_workload_is_read_from_text_and_files(tmp_path):
    expected = Workload(global_batch=256, gradient_bytes=4e6)
    assert Workload.from_text("global_batch=256, gradient_bytes=4e6") == expected
    toml, document = tmp_path / "job.toml", tmp_path / "job.json"
    toml.write_text("global_batch = 256\ngradient_bytes = 4e6\n")
    document.write_text('{"global_batch": 256, "gradient_bytes": 4e6}')
    assert Workload.from_file(toml) == Workload.from_file(document) == expected
    assert expected.num_units == 1
    assert expected.resident_bytes == 16e6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("global_batch=256", "missing required field `gradient_bytes`"),
        ("global_batch=0,gradient_bytes=1", "global_batch must be at least 1, not 0"),
        ("global_batch=1,gradient_bytes=-1", "gradient_bytes must be finite and 0 or more"),
        ("global_batch=1,gradient_bytes=inf", "gradient_bytes must be finite"),
        ("global_batch=1,gradient_bytes=1,overlap=2", "overlap must be between 0 and 1"),
        ("global_batch=many", "which is no field=number"),
        ("global_batch=1,gradient_bytes=1,colour=3", "unknown field `colour`"),
    ],
)
def test_what_is_wrong_with_a_workload_is_named(text, message):
    with pytest.raises(UsageError, match=message):
        Workload.from_text(text)


def test_a_missing_workload_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read the workload .*nowhere.toml"):
        Workload.from_file(tmp_path / "nowhere.toml")


def test_a_broken_plan_is_named(tmp_path):
    path = tmp_path / "plan.json"
    with pytest.raises(LogError, match="cannot read the plan"):
        Plan.from_file(path)
    path.write_text("{}")
    with pytest.raises(LogError, match="make it anew with `gangline plan`"):
        Plan.from_file(path)


def test_a_group_holds_nodes_or_groups():
    with pytest.raises(UsageError, match="needs either members or groups"):
        GroupPlan(name="g", topology="ring", leader="n0")
