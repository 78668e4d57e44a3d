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
