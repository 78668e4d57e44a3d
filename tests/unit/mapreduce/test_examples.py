# SPDX-License-Identifier: Apache-2.0
"""The examples run as scripts, and find what is in their made-up data."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


def output_of(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> str:
    path = EXAMPLES / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(path), *words])
    runpy.run_path(str(path), run_name="__main__")
    return capsys.readouterr().out


def test_connected_components(capsys, monkeypatch, tmp_path: Path) -> None:
    said = output_of("connected_components", capsys, monkeypatch)
    csgraph = pytest.importorskip("scipy.sparse.csgraph", reason="scipy is not installed")
    sparse = pytest.importorskip("scipy.sparse")
    edges = np.unique(np.random.default_rng(0).integers(0, 10_000, (8_000, 2)), return_inverse=True)
    ends = edges[1].reshape(-1, 2).T
    count, labels = csgraph.connected_components(sparse.coo_matrix((np.ones(8_000), tuple(ends))))
    largest = np.bincount(labels).max()
    assert said.startswith(f"{len(labels)} nodes, {count} components, the largest of {largest}, ")
    (tmp_path / "edges.txt").write_text("1 2\n2 3\n7 9\n")
    given = str(tmp_path / "edges.txt")
    assert "5 nodes, 2 components, the largest of 3" in output_of(
        "connected_components", capsys, monkeypatch, given, "GSS"
    )


def test_matrix_addition(capsys, monkeypatch) -> None:
    lines = output_of("matrix_addition", capsys, monkeypatch, "300", "7").splitlines()
    assert len(lines) == 12
    assert all(line.endswith("right") for line in lines)


def test_linear_regression(capsys, monkeypatch) -> None:
    said = output_of("linear_regression", capsys, monkeypatch)
    assert said == "weights: 2.000, -1.000, 0.500\nintercept: 3.000\n"


def test_k_means(capsys, monkeypatch) -> None:
    first, *lines = output_of("kmeans", capsys, monkeypatch).splitlines()
    assert first == "9000 points"
    assert sorted(line.split()[0] for line in lines) == ["3000", "3000", "3000"]
