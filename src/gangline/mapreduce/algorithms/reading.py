# SPDX-License-Identifier: Apache-2.0
"""Matrices and graphs from files: text, `.npy`, `.npz` (scipy), `.mtx` (Matrix Market)."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import numpy as np

from gangline.local.table import library_of
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

SPARSE_BELOW = 0.25
"""A matrix of which less than this part is not zero is kept sparse."""
_MAX_DENSE_BYTES = 8 << 30


def read_matrix(path: Path) -> Any:
    """A matrix, as its file has it: dense, or sparse by rows. Raises UsageError."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    try:
        found = _read(path)
    except UsageError:
        raise
    except Exception as error:  # who reads the many formats raises all kinds
        raise UsageError(
            f"{path} cannot be read: {error}; give numbers as text (one row in a line), .npy, .npz or "
            f".mtx"
        ) from error
    if len(found.shape) != 2:
        raise UsageError(f"{path} has {len(found.shape)} dimensions; a matrix has rows and columns")
    return found


def read_graph(path: Path) -> Any:
    """The symmetric matrix of an undirected graph: from two node numbers in a line, or a matrix.

    Nodes are counted anew, without gaps.
    """
    found = read_matrix(path)
    sparse = _scipy(path)
    if _is_text(path):
        if found.shape[1] < 2:
            raise UsageError(
                f"{path} has one column; a list of edges has two node numbers in a line"
            )
        _, ends = np.unique(found[:, :2], return_inverse=True)
        ends = ends.reshape(-1, 2)
        nodes = int(ends.max()) + 1 if len(ends) else 0
        ones = np.ones(len(ends), dtype=np.int8)
        found = sparse.coo_matrix((ones, (ends[:, 0], ends[:, 1])), shape=(nodes, nodes)).tocsr()
    if found.shape[0] != found.shape[1]:
        raise UsageError(
            f"{path} has {found.shape[0]} rows and {found.shape[1]} columns; the matrix of a graph has "
            f"a row and a column for each node"
        )
    return found.maximum(found.T).tocsr() if library_of(found) == "scipy" else found + found.T


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
    return _read_text(path)


def _read_text(path: Path) -> Any:
    """Numbers between commas or blanks; lines that begin with # and a line of names are left out."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        first = next((line for line in file if line.strip() and not line.startswith("#")), "")
    if not first:
        raise UsageError(f"{path} has no rows")
    separator = "," if "," in first else None
    try:
        [float(word) for word in first.split(separator)]
        has_names = 0
    except ValueError:
        has_names = 1
    with opened(path, "rt", encoding="utf-8") as file:
        lines = (line for line in file if line.strip() and not line.startswith("#"))
        for _ in range(has_names):
            next(lines)
        return np.loadtxt(lines, delimiter=separator, ndmin=2)


def _is_text(path: Path) -> bool:
    name = path.name.removesuffix(".gz")
    return not name.endswith((".npy", ".npz", ".mtx"))


def _scipy(what: Any) -> Any:
    try:
        import scipy.sparse
    except ImportError as error:
        raise UsageError(f"{what} needs scipy: pip install scipy") from error
    return scipy.sparse
