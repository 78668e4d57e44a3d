# SPDX-License-Identifier: Apache-2.0
"""Matrices and graphs from files: text, `.npy`, `.npz` (scipy), `.mtx` (Matrix Market)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gangline.local.table import library_of
from gangline.mapreduce.algorithms.text import read_edges, read_numbers
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SPARSE_BELOW = 0.25
"""A matrix of which less than this part is not zero is kept sparse."""
_MAX_DENSE_BYTES = 8 << 30


def read_matrix(path: Path) -> Any:
    """A matrix of floats, as its file has it: dense, or sparse by rows. Raises UsageError."""
    found = _read_any(path)
    if found.dtype.kind not in "biuf":
        raise UsageError(f"{path} holds {found.dtype} values; give real numbers")
    values = found.data if library_of(found) == "scipy" else found
    if not np.isfinite(values).all():
        raise UsageError(f"{path} has values that are no numbers (nan, inf); leave out their rows")
    return found.astype(np.float64)


def read_graph(path: Path) -> Any:
    """The symmetric matrix of an undirected graph: true where two nodes have an edge.

    Text is a list of edges: two node numbers in a line, and perhaps a weight, which does not matter.
    Nodes are counted anew, without gaps. Other files hold the matrix, whose values are the edges.
    """
    sparse = _scipy(path)
    if _is_text(path):
        return _graph_of_edges(path, sparse)
    found = _read_any(path)
    if found.shape[0] != found.shape[1]:
        raise UsageError(
            f"{path} has {found.shape[0]} rows and {found.shape[1]} columns; the matrix of a graph has "
            f"a row and a column for each node (a list of edges is a text file)"
        )
    edges = found != 0
    return (edges + edges.T).tocsr() if library_of(found) == "scipy" else edges | edges.T


def _graph_of_edges(path: Path, sparse: Any) -> Any:
    found = _checked(path, lambda: read_edges(path))
    _, ends = np.unique(found, return_inverse=True)
    ends = ends.reshape(-1, 2)
    nodes = int(ends.max()) + 1
    edges = np.ones(len(ends), dtype=bool)
    graph = sparse.coo_matrix((edges, (ends[:, 0], ends[:, 1])), shape=(nodes, nodes)).tocsr()
    return (graph + graph.T).tocsr()


def select_representation(matrix: Any) -> Any:
    """Dense or sparse, by how much of it is not zero."""
    is_sparse = library_of(matrix) == "scipy"
    size = matrix.shape[0] * matrix.shape[1]
    filled = matrix.nnz if is_sparse else int(np.count_nonzero(matrix))
    if filled < SPARSE_BELOW * size:
        return matrix if is_sparse else _scipy("--select-matrix-repr").csr_matrix(matrix)
    if is_sparse and size * matrix.dtype.itemsize > _MAX_DENSE_BYTES:
        return matrix
    return matrix.toarray() if is_sparse else matrix


def _read_any(path: Path) -> Any:
    found = _checked(path, lambda: _read(path))
    if len(found.shape) != 2:
        raise UsageError(f"{path} has {len(found.shape)} dimensions; a matrix has rows and columns")
    return found


def _checked(path: Path, read: Callable[[], Any]) -> Any:
    """What is read; whatever goes wrong is told with the file."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    try:
        return read()
    except UsageError:
        raise
    except Exception as error:  # who reads the many formats raises all kinds
        raise UsageError(
            f"{path} cannot be read: {error}; give numbers as text (one row in a line), .npy, .npz or "
            f".mtx"
        ) from error


def _read(path: Path) -> Any:
    name = path.name.removesuffix(".gz")
    if name.endswith(".npy"):
        return np.load(path, allow_pickle=False)
    if name.endswith(".npz"):
        return _scipy(path).load_npz(path).tocsr()
    if name.endswith(".mtx"):
        import scipy.io

        found = scipy.io.mmread(path)
        return found.tocsr() if library_of(found) == "scipy" else found
    return read_numbers(path)


def _is_text(path: Path) -> bool:
    name = path.name.removesuffix(".gz")
    return not name.endswith((".npy", ".npz", ".mtx"))


def _scipy(what: Any) -> Any:
    try:
        import scipy.sparse
    except ImportError as error:
        raise UsageError(f"{what} needs scipy: pip install scipy") from error
    return scipy.sparse
