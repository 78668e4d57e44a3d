# SPDX-License-Identifier: Apache-2.0
"""`gangline probe`: what is measured, on this machine."""

from __future__ import annotations

import json
import multiprocessing
from xml.etree import ElementTree

import pytest

from gangline.cli.main import run_command
from gangline.profiling.computing import fit_cost
from gangline.profiling.lineplot import draw_lines
from gangline.profiling.ringfigure import measure_figure
from gangline.profiling.team import Request, Team, measured_link
from gangline.spec.errors import LaunchError
from gangline.spec.profile import ClusterProfile


def test_the_line_goes_through_the_medians():
    cost = fit_cost({n: [1e-3 + 2e-4 * n, 1e-3 + 2e-4 * n, 9.0] for n in (1, 8, 32)})
    assert cost.fixed_s == pytest.approx(1e-3)
    assert cost.per_sample_s == pytest.approx(2e-4)
    assert cost.spread > 0


def test_noise_never_makes_a_cost_negative():
    cost = fit_cost({1: [5.0], 8: [4.0], 32: [3.0]})
    assert cost.fixed_s == 0
    assert cost.per_sample_s > 0


def test_an_emulated_cluster_is_profiled_and_planned(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_command(["probe", "--speeds", "1,0.5", "--image-size", "8", "--model", "mlp"]) == 0
    assert "profile: profile.json" in capsys.readouterr().out
    profile = ClusterProfile.from_file(tmp_path / "profile.json")
    first, second = profile.nodes
    assert second.per_sample_s == pytest.approx(2 * first.per_sample_s)
    assert profile.zones[0].link.bytes_per_s > 0
    workload = "global_batch=64,gradient_bytes=1e5"
    assert run_command(["plan", "profile.json", "--workload", workload]) == 0
    assert multiprocessing.active_children() == []


def test_a_link_is_measured_both_ways_by_processes_that_end():
    with Team(2) as team:
        there, back = measured_link(team.ask(Request(what="link")))
    assert there.latency_s == back.latency_s > 0
    assert min(there.bytes_per_s, back.bytes_per_s) > 0
    assert multiprocessing.active_children() == []


def test_a_member_that_dies_is_said():
    with Team(2) as team, pytest.raises(LaunchError, match="of 2 that measure links ended"):
        team.ask(Request(what="no such thing"))
    assert multiprocessing.active_children() == []


def test_ring_and_server_are_measured_over_sizes():
    heard = []
    figure = measure_figure(2, sizes=(4096, 65536), say=heard.append)
    assert [row.num_bytes for row in figure.rows] == [4096, 65536]
    assert all(min(row.inside_s, row.outside_s, row.server_s) > 0 for row in figure.rows)
    assert heard == ["exchanging 4 KiB among 2 processes", "exchanging 64 KiB among 2 processes"]
    root = ElementTree.fromstring(draw_lines(figure.series(), title="a < b", x="x", y="y"))
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plot", "x.svg"], "--plot draws what --ring measures"),
        (["--ring", "--workers", "1"], "--workers must be 2 to 16 with --ring, not 1"),
        (["--speeds", "fast"], "write numbers with commas between them"),
        (["--speeds", "1", "--cluster", "c.toml"], "leave one out"),
        (["--model", "lenet6"], "did you mean 'lenet5'"),
    ],
)
def test_what_cannot_be_probed_is_said(arguments, message, capsys):
    assert run_command(["probe", *arguments, "--json"]) == 2
    assert message in json.loads(capsys.readouterr().out)["error"]["message"]
