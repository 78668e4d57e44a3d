# SPDX-License-Identifier: Apache-2.0
"""The names that a profile of a running job has, and their way back to workers' numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gangline.cli.probe.live_job import _profile, in_worker_order, name_workers
from gangline.eventlog import EventWriter, log_path
from gangline.protocol.status import SurveyedLink, SurveyStatus
from gangline.spec.errors import LaunchError, UsageError
from gangline.spec.event import RunStarted
from gangline.spec.profile import ClusterProfile, NodeProfile

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    with EventWriter(log_path(tmp_path, "launcher"), run="r", source="launcher") as events:
        nodes = ["desk", "lap", "lap"]
        events.write(
            RunStarted(t=0, command=[], workers=3, nodes=nodes, speeds=[1.0] * 3, scale=1.0)
        )
    return tmp_path


def surveyed(source: int, target: int, *, latency_s: float = 1e-3) -> SurveyedLink:
    return SurveyedLink(
        source=source,
        target=target,
        latency_s=latency_s,
        num_bytes=1_000_000,
        there_s=[0.102] * 5,
        back_s=[0.202] * 5,
    )


def status(*links: SurveyedLink) -> SurveyStatus:
    return SurveyStatus(
        is_over=True,
        num_done=len(links),
        num_pairs=2,
        took_s=1.0,
        hosts=[[0], [1, 2, 3]],
        links=list(links),
        errors=["worker 0 to 1: refused"],
    )


def test_workers_are_named_by_their_nodes_and_else_by_number(run_dir: Path) -> None:
    names = name_workers(run_dir, range(4))
    assert names == {0: "desk", 1: "lap.0", 2: "lap.1", 3: "worker 3"}


def test_a_survey_becomes_a_profile(run_dir: Path) -> None:
    costs = {worker: [0.001, 0.002, 9.0] for worker in range(4)}
    found = _profile(run_dir, status(surveyed(1, 0), surveyed(2, 1)), costs)
    assert [node.per_sample_s for node in found.nodes] == [0.002] * 4
    first = found.pairs[0]
    assert (first.source, first.target) == ("lap.0", "desk")
    assert first.there.bytes_per_s == pytest.approx(1e7)
    assert first.worst.bytes_per_s == pytest.approx(5e6)
    inside = {frozenset((p.source, p.target)) for p in found.pairs[1:]}
    assert len(inside) == 3, "two workers of a host stand for all of them"


@pytest.mark.parametrize(
    ("links", "costs", "message"),
    [
        ([], {w: [1.0] for w in range(4)}, "no link could be measured: worker 0 to 1: refused"),
        ([surveyed(1, 0)], {0: [1.0]}, "worker 1 has not made a step yet"),
    ],
)
def test_what_is_missing_is_said(
    run_dir: Path, links: list[SurveyedLink], costs: dict[int, list[float]], message: str
) -> None:
    with pytest.raises(LaunchError, match=message):
        _profile(run_dir, status(*links), costs)


def test_nodes_go_to_the_places_of_their_workers(run_dir: Path) -> None:
    some = ClusterProfile(
        nodes=tuple(NodeProfile(name=n, per_sample_s=2.0) for n in ("worker 4", "desk"))
    )
    nodes = in_worker_order(some, run_dir).nodes
    assert [node.name for node in nodes] == ["desk", "lap.0", "lap.1", "worker 3", "worker 4"]
    assert [node.per_sample_s for node in nodes] == [2.0, 1.0, 1.0, 1.0, 2.0]
    strange = ClusterProfile(nodes=(NodeProfile(name="x", per_sample_s=1.0),))
    with pytest.raises(UsageError, match="the profile names 'x', which is no worker of the run"):
        in_worker_order(strange, run_dir)
