# SPDX-License-Identifier: Apache-2.0
"""What `gangline apply` computes, against other ways to compute it, on made-up data and real graphs."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from gangline.mapreduce.algorithms import ALGORITHMS
from gangline.mapreduce.algorithms.reading import (
    read_graph,
    read_matrix,
    select_representation,
)
from gangline.spec.errors import UsageError

sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")

SHARED = Path(os.environ.get("GANGLINE_DATA", Path(__file__).parents[4] / "shared" / "data"))
LOOP = {"scheme": "GSS", "workers": 3, "layout": "PERCPU"}
KINDS = {"dense": np.asarray, "sparse": sparse.csr_matrix}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_components_are_those_that_scipy_finds(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    links = rng.random((60, 60)) < 0.02
    links |= links.T
    found = ALGORITHMS["connected-components"].run(KINDS[kind](links.astype(float)), **LOOP)
    count, labels = sparse.csgraph.connected_components(sparse.csr_matrix(links))
    assert found["components"] == count
    assert found["largest"] == np.bincount(labels).max()
    together = found["labels"][:, None] == found["labels"]
    assert np.array_equal(together, labels[:, None] == labels)


GRAPHS = {
    "email-Enron.txt.gz": (36_692, 1065, 33_696),
    "soc-Epinions1.txt.gz": (75_879, 2, 75_877),
    "com-dblp.csv.gz": (317_080, 1, 317_080),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_components_of_real_graphs(name: str) -> None:
    path = SHARED / "graphs" / name
    if not path.exists():
        pytest.skip(f"no {path}; set GANGLINE_DATA to the folder that holds graphs/")
    found = ALGORITHMS["connected-components"].run(read_graph(path), **LOOP)
    assert (found["nodes"], found["components"], found["largest"]) == GRAPHS[name]


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_are_added(kind: str) -> None:
    one, other = np.random.default_rng(0).integers(0, 3, (2, 40, 5)).astype(float)
    found = ALGORITHMS["matrix-addition"].run(KINDS[kind](one), KINDS[kind](other), **LOOP)
    total = found["matrix"]
    assert np.array_equal(total if kind == "dense" else total.toarray(), one + other)
    assert found["sum"] == (one + other).sum()
    with pytest.raises(UsageError, match="40 × 5 and 39 × 5 cannot be added"):
        ALGORITHMS["matrix-addition"].run(one, other[1:])


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_is_found_again(kind: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 3))
    y = x @ [2.0, -1.0, 0.5] + 3.0
    found = ALGORITHMS["linear-regression"].run(KINDS[kind](np.column_stack([x, y])), **LOOP)
    np.testing.assert_allclose(found["coefficients"], [2.0, -1.0, 0.5], atol=1e-9)
    assert found["intercept"] == pytest.approx(3.0)
    assert found["mean_squared_error"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_clusters_are_found_again(kind: str) -> None:
    rng = np.random.default_rng(1)
    middles = np.array([[0.0, 0.0], [50.0, 0.0], [0.0, 50.0]])
    data = np.concatenate([middle + rng.standard_normal((30, 2)) for middle in middles])
    found = ALGORITHMS["kmeans"].run(KINDS[kind](data), clusters=3, seed=1, **LOOP)
    assert sorted(found["sizes"]) == [30, 30, 30]
    means = sorted(data[30 * k : 30 * k + 30].mean(axis=0).tolist() for k in range(3))
    np.testing.assert_allclose(sorted(found["centres"].tolist()), means)
    with pytest.raises(UsageError, match="91 clusters of 90 rows"):
        ALGORITHMS["kmeans"].run(data, clusters=91)


# --- files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "1,2\n3,4\n",
        "# a comment\n1 2\n\n3 4\n",
        "a,b\n1,2\n3,4\n",
        "\ufeff1,2\n3,4\n",
        "1 2 # x\n3 4\n",
    ],
)
def test_text_is_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    assert read_matrix(path).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    with gzip.open(tmp_path / "x.csv.gz", "wt") as file:
        file.write(text)
    assert read_matrix(tmp_path / "x.csv.gz").tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_matrices_of_numpy_and_scipy_are_read(tmp_path: Path) -> None:
    io = pytest.importorskip("scipy.io")
    values = np.eye(3)
    np.save(tmp_path / "x.npy", values)
    sparse.save_npz(tmp_path / "x.npz", sparse.csr_matrix(values))
    io.mmwrite(tmp_path / "x.mtx", sparse.csr_matrix(values))
    assert np.array_equal(read_matrix(tmp_path / "x.npy"), values)
    for name in ("x.npz", "x.mtx"):
        assert np.array_equal(read_matrix(tmp_path / name).toarray(), values)
        assert np.array_equal(read_graph(tmp_path / name).toarray(), values)


def test_edges_become_a_symmetric_matrix_without_gaps(tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text("# nodes\n10\t7\n7\t3000000000\n10\t7\n")
    assert read_graph(path).toarray().astype(bool).tolist() == [
        [False, True, True],
        [True, False, False],
        [True, False, False],
    ]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.csv", b"1,2\n3\n", "line 2: 1 values, and 2"),
        ("x.csv", b"# ids\n1,2\n3,x\n", "line 3: 'x' is not a number"),
        ("x.csv", b"1,2\n1.5,2\n", "line 2: '1.5' is not a whole number"),
        ("x.csv", b"1 2 3 4\n", "4 columns"),
        ("x.csv", b"a,b\n", "no rows of numbers"),
        ("x.csv", b"1,,2\n3,4,5\n", "line 1: .* neither a row of numbers nor"),
        ("x.csv", b"NA,1\n3,4\n", "line 1: .* neither a row of numbers nor"),
        ("x.csv", b"", "has no rows"),
        ("x.npy", b"garbage", "cannot be read"),
        ("x.npz", b"garbage", "cannot be read"),
        ("x.csv.gz", b"1,2\n", "cannot be read"),
        ("x.csv", b"1\n2\n", "two node numbers"),
    ],
)
def test_files_that_are_no_graph_are_refused(
    name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=rf"{name}.*{said}"):
        read_graph(tmp_path / name)


def test_node_numbers_keep_all_their_bits(tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text("9007199254740992 9007199254740993\n1 2\n")
    assert read_graph(path).shape == (4, 4)
    path.write_text("18446744073709551615 18446744073709551614 0.5\n1 2 0.25\n")
    assert read_graph(path).shape == (4, 4)


def test_an_edge_is_an_edge_whatever_its_weight(tmp_path: Path) -> None:
    weights = sparse.csr_matrix(([-1.0, 0.0], ([0, 1], [1, 2])), shape=(3, 3))
    sparse.save_npz(tmp_path / "x.npz", weights)
    found = ALGORITHMS["connected-components"].run(read_graph(tmp_path / "x.npz"), **LOOP)
    assert found["components"] == 2
    path = tmp_path / "often.txt"
    path.write_text("1 2\n" * 256)
    assert ALGORITHMS["connected-components"].run(read_graph(path), **LOOP)["components"] == 1


@pytest.mark.parametrize("kind", ["u1", "?", "f2", "i8"])
def test_small_types_do_not_overflow(kind: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.full((3, 2), 200).astype(kind))
    matrix = read_matrix(tmp_path / "x.npy")
    found = ALGORITHMS["matrix-addition"].run(matrix, matrix, **LOOP)
    assert found["sum"] == 2 * float(matrix.sum())
    assert matrix.dtype == np.float64


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.array([["a", "b"]]), "real numbers"),
        (np.array([[1j, 2]]), "real numbers"),
        (np.array([[np.nan, 2.0]]), "nan, inf"),
        (np.array([["2026-01-01"]], dtype="M8[D]"), "real numbers"),
    ],
)
def test_matrices_of_other_things_are_refused(
    values: np.ndarray, said: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", values)
    with pytest.raises(UsageError, match=rf"x\.npy.*{said}"):
        read_matrix(tmp_path / "x.npy")


def test_arrays_that_hold_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UsageError, match="cannot be read"):
        read_matrix(tmp_path / "x.npy")


def test_the_representation_follows_the_density() -> None:
    thin, full = np.eye(10), np.ones((10, 10))
    assert sparse.issparse(select_representation(thin))
    assert sparse.issparse(select_representation(sparse.csr_matrix(thin)))
    assert not sparse.issparse(select_representation(full))
    assert not sparse.issparse(select_representation(sparse.csr_matrix(full)))
