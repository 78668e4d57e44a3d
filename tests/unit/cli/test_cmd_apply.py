# SPDX-License-Identifier: Apache-2.0
"""`gangline apply`: the flags of the paper, what is printed, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gangline.cli.cmd_apply import AlgorithmName
from gangline.cli.main import run_command
from gangline.mapreduce.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("scipy.sparse", reason="scipy is not installed")


@pytest.fixture
def graph(tmp_path: Path) -> str:
    path = tmp_path / "graph.csv"
    path.write_text("1,2\n2,3\n10,11\n")
    return str(path)


def test_the_command_of_the_paper_runs(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--partitioning=GSS --queue-layout=PERCPU --victim-selection=SEQPRI --num-threads=8 "
    flags += "--pin-workers --grain-size=2 --pre-partition --timing --select-matrix-repr"
    assert run_command(["apply", "connected-components", graph, *flags.split()]) == 0
    *said, timing = capsys.readouterr().out.splitlines()
    assert said[:3] == ["nodes: 5", "components: 2", "largest: 3"]
    took = json.loads(timing)
    assert list(took) == [
        "startup_seconds",
        "reading_seconds",
        "execution_seconds",
        "total_seconds",
    ]
    parts = [value for key, value in took.items() if key != "total_seconds"]
    assert sum(parts) == pytest.approx(took["total_seconds"])


def test_json_is_one_document(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["apply", "connected-components", graph, "--json", "--timing"]
    assert run_command([*line, "--queue-layout=PERCPU"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["components"], told["largest"]) == (2, 3)
    assert told["timing"]["execution_seconds"] >= 0


def test_clusters_and_lines_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.column_stack([np.arange(20.0), 3 * np.arange(20.0) + 1]))
    assert run_command(["apply", "linear-regression", str(path)]) == 0
    assert "coefficients: 3\nintercept: 1\n" in capsys.readouterr().out
    assert run_command(["apply", "kmeans", str(path), "--clusters", "2", "--seed", "3"]) == 0
    assert "sizes: 10, 10" in capsys.readouterr().out
    assert run_command(["apply", "matrix-addition", str(path), str(path)]) == 0
    assert "rows: 20\ncolumns: 2\nsum: 1560" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["connected-components", "nowhere.csv"], "there is no file nowhere.csv"),
        (["connected-components", "{graph}", "--partitioning=G"], "no scheme 'G'"),
        (["matrix-addition", "{graph}"], "matrix-addition takes 2 file(s), not 1"),
        (["sorting", "{graph}"], "'sorting' is not one of"),
        (
            ["connected-components", "{graph}", "--partitioning=AF", "--queue-layout=PERCPU"],
            "pre_partition",
        ),
    ],
)
def test_mistakes_are_told(
    line: list[str], said: str, graph: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["apply", *(part.format(graph=graph) for part in line)]) == 2
    assert said in capsys.readouterr().err


def test_every_algorithm_can_be_asked_for() -> None:
    assert {name.value for name in AlgorithmName} == set(ALGORITHMS)
