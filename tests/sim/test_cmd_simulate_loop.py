# SPDX-License-Identifier: Apache-2.0
"""`gangline simulate-loop`."""

from __future__ import annotations

import json

import pytest

from gangline.cli.main import run_command

SMALL = ("simulate-loop", "--items", "200", "--loops", "2")


@pytest.fixture
def call(capsys):
    def run(*arguments: str, code: int = 0) -> str:
        found = run_command([*SMALL, *arguments])
        said = capsys.readouterr()
        assert found == code, said.err
        return said.err if code else said.out

    return run


def test_it_prints_a_table_and_says_which_choice_is_best(call):
    text = call("--scheme", "STATIC", "--scheme", "SS", "--speeds", "1,0.5", "--layout", "PERCPU")
    assert "200 items (uniform), 2 workers, mean of 2 loops" in text
    assert "best: SS, PERCPU" in text
    assert "the worst of 8, STATIC, PERCPU" in text
    assert "picked while it runs" in text
    assert "loop 0, within: AWF-E(x=8)" in text


def test_rows_may_be_fewer_than_choices(call):
    text = call("--scheme", "SS", "--scheme", "GSS", "--layout", "CENTRALIZED", "--rows", "1")
    assert text.count("CENTRALIZED") < 4


def test_it_prints_one_document_with_json(call):
    found = json.loads(call("--json", "--scheme", "gss", "--grain", "1", "--grain", "9"))
    assert (found["items"], found["workers"], found["loops"]) == (200, 4, 2)
    assert found["ideal_s"] == pytest.approx(0.05)
    assert len(found["choices"]) == 2 * (1 + 4 + 4)
    times = [one["time_s"] for one in found["choices"]]
    assert times == sorted(times)
    assert found["best"] == found["choices"][0]["choice"]
    assert found["automated"]["chunks"] > 0
    assert found["decisions"][0].startswith("loop 0: SS")
    assert {one["grain"] for one in found["choices"]} == {1, 9}


def test_all_schemes_are_compared_if_none_is_named(call):
    found = json.loads(call("--json", "--loops", "1", "--layout", "CENTRALIZED"))
    assert len(found["choices"]) == 24


def test_two_levels_have_a_scheme_between_groups(call):
    given = ("--between", "GSS", "--scheme", "SS", "--groups", "0,0,1,1", "--between-s", "0.1")
    found = json.loads(call("--json", "--layout", "CENTRALIZED", *given))
    assert found["best"] == "GSS between groups, SS, CENTRALIZED inside"
    assert found["automated"] is None
    assert found["choices"][0]["time_s"] > 0.15


def test_a_recorded_loop_is_compared(call, tmp_path):
    path = tmp_path / "chunks.jsonl"
    lines = [
        {"start": 0, "stop": 30, "worker": 0, "seconds": 3.0},
        {"start": 30, "stop": 60, "worker": 1, "seconds": 6.0},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = json.loads(call("--json", "--recorded", str(path), "--scheme", "SS"))
    assert (found["items"], found["workers"]) == (60, 2)
    assert found["ideal_s"] == pytest.approx(6.0 / 1.5), "60 items of 0.1 s at the speeds 1 and 0.5"
    given = json.loads(call("--json", "--recorded", str(path), "--scheme", "SS", "--speeds", "1,1"))
    assert given["ideal_s"] == pytest.approx(4.5), "the second worker's items cost twice as much"
    path.write_text(json.dumps(lines[1]))
    assert "items 0 to 29 are missing" in call("--recorded", str(path), code=1)
    assert "cannot read" in call("--recorded", str(tmp_path / "none"), code=2)
    assert "one of them" in call("--recorded", str(path), "--workload", "uniform", code=2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--scheme", "GSSS"), "did you mean 'GSS'?"),
        (("--layout", "PERNODE"), "no queue layout 'PERNODE'"),
        (("--victims", "NEXT"), "no victim rule 'NEXT'"),
        (("--workload", "burst"), "did you mean 'bursts'?"),
        (("--speeds", "1,fast"), "--speeds 1,fast: write numbers"),
        (("--speeds", "1,0"), "each must be above 0"),
        (("--groups", "0,1"), "2 groups for 4 workers"),
        (("--scheme", "no_such_module:X"), "cannot import no_such_module"),
        (("--grain", "0"), "a grain of 0"),
    ],
)
def test_what_cannot_be_is_refused(call, given, said):
    assert said in call(*given, code=2)
