# SPDX-License-Identifier: Apache-2.0
"""`gangline plan`."""

from __future__ import annotations

import json

import pytest
from planning_cases import table_1

from gangline.cli.main import run_command
from gangline.spec.plan import Plan

WORKLOAD = "global_batch=1024,gradient_bytes=250e3"


@pytest.fixture
def profile(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "profile.json"
    path.write_bytes(table_1().to_json())
    return str(path)


def test_it_shows_the_tree_and_the_reasons(profile, tmp_path, capsys):
    assert run_command(["plan", profile, "--workload", WORKLOAD]) == 0
    text = capsys.readouterr().out
    assert "near  ring of 8 nodes, led by node0" in text
    assert "compute-bound: computing takes" in text
    assert "8 of 14 nodes take part" in text
    assert "spare: node8" in text
    assert "considered" not in text
    assert len(Plan.from_file(tmp_path / "plan.json").nodes) == 8


def test_it_compares_with_what_was_rejected(profile, capsys):
    assert run_command(["plan", profile, "--workload", WORKLOAD, "--compare"]) == 0
    text = capsys.readouterr().out
    for name in ("flat ring", "flat parameter", "square root", "random formation", "one node"):
        assert name in text
    assert "asp step" in text
    assert "no parameter server takes less" in " ".join(text.split())


def test_it_prints_one_document_with_json(profile, tmp_path, capsys):
    assert run_command(["plan", profile, "--workload", WORKLOAD, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert sum(plan["shares"]) == 1024
    assert not (tmp_path / "plan.json").exists()


def test_it_plans_a_made_up_cluster(profile, tmp_path, capsys):
    flags = ["--workload", "global_batch=9000,gradient_bytes=1e6", "--output", "made.json"]
    assert run_command(["plan", "--synthetic", "sites=2,racks=10,nodes=30", *flags]) == 0
    text = capsys.readouterr().out
    assert "s1/r" in text
    assert (tmp_path / "made.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "a plan needs one cluster"),
        (["nowhere.json"], 1, "cannot read the profile nowhere.json"),
        (["--synthetic", "sites=two"], 2, "write sites=20,racks=50,nodes=100"),
        (["--synthetic", "sites=0"], 2, "at least one site, rack and node"),
        (["--synthetic", "nodes=2", "--grouping", "magic"], 2, "no grouping 'magic'"),
        (["--synthetic", "nodes=2", "--output", "no/where.json"], 2, "cannot write the plan"),
    ],
)
def test_what_cannot_be_planned_is_said(profile, capsys, arguments, code, message):
    assert run_command(["plan", *arguments, "--workload", WORKLOAD]) == code
    assert message in " ".join(capsys.readouterr().err.split())


def test_it_puts_the_papers_equations_beside_the_cost_model(profile, capsys):
    assert run_command(["plan", profile, "--workload", WORKLOAD, "--compare"]) == 0
    text = capsys.readouterr().out
    assert "paper 000's equations with N = " in text
    for equation in ("serial", "(1)", "(2)"):
        assert equation in text


LAYER = {"parameter_bytes": 1e6, "state_bytes": 4e6, "saved_bytes": 1e4, "output_bytes": 1e4}


def nodes(tmp_path, *memory):
    """Nodes a, b, … with so much memory each, in one room."""
    found = [
        {"name": "abc"[n], "per_sample_s": 0.01 / (n + 1), "memory_bytes": room}
        for n, room in enumerate(memory)
    ]
    link = {"latency_s": 1e-4, "bytes_per_s": 1e9}
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps({"nodes": found, "zones": [{"place": "", "link": link}]}))
    layers = [{"name": f"l{index}", "part": 0.25, **LAYER} for index in range(4)]
    workload = tmp_path / "workload.json"
    sizes = {"gradient_bytes": 4e6, "model_bytes": 16e6, "sample_bytes": 4e4}
    workload.write_text(json.dumps({"global_batch": 64, **sizes, "layers": layers}))
    return [str(path), "--workload", str(workload)]


def test_it_plans_a_pipeline_beside_a_node_that_is_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_command(["plan", *nodes(tmp_path, 11e6, 11e6, 1e9)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "pipeline over" in text
    assert "c alone" in text
    layout = Plan.from_file(tmp_path / "plan.json").pipelines
    assert {frozenset(one.machines) for one in layout.pipelines} == {
        frozenset("ab"),
        frozenset("c"),
    }
    assert sum(one.share for one in layout.pipelines) == 64


def test_it_plans_a_model_that_no_node_can_hold(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_command(["plan", *nodes(tmp_path, 11e6, 11e6)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "pipeline over" in text
    assert "no node can hold the model" in text
    assert run_command(["plan", *nodes(tmp_path, 11e6, 11e6), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown["pipelines"]["pipelines"]) == 1


def test_layers_must_make_up_the_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = nodes(tmp_path, 11e6, 11e6)
    path = tmp_path / "workload.json"
    path.write_text(path.read_text().replace("0.25", "0.2"))
    assert run_command(["plan", *flags]) != 0
    assert "must sum to 1, not to 0.8" in " ".join(capsys.readouterr().err.split())
