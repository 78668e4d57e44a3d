# SPDX-License-Identifier: Apache-2.0
"""Rows of all kinds of data are taken by their numbers, and stay of their kind."""

from __future__ import annotations

import numpy as np
import paramserv_functions as functions
import pytest
import torch

import gangline
from gangline.local.table import Table
from gangline.spec.errors import UsageError

VALUES = np.arange(24.0).reshape(8, 3)
SOME = [np.array([2, 3, 4]), np.array([7, 0, 5]), np.array([6])]
SPARSE = ("csr_matrix", "csc_matrix", "coo_matrix", "csr_array", "lil_matrix")


@pytest.mark.parametrize("rows", SOME)
def test_arrays_and_tensors(rows: np.ndarray) -> None:
    assert np.array_equal(Table(VALUES, name="x").take(rows), VALUES[rows])
    taken = Table(torch.from_numpy(VALUES), name="x").take(rows)
    assert isinstance(taken, torch.Tensor)
    assert np.array_equal(taken.numpy(), VALUES[rows])


@pytest.mark.parametrize("rows", SOME)
@pytest.mark.parametrize("kind", SPARSE)
def test_sparse_matrices(kind: str, rows: np.ndarray) -> None:
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    taken = Table(getattr(sparse, kind)(VALUES), name="x").take(rows)
    assert sparse.issparse(taken)
    assert np.array_equal(taken.toarray(), VALUES[rows])


@pytest.mark.parametrize("rows", SOME)
@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("kind", ["DataFrame", "Series"])
def test_data_frames(library: str, kind: str, rows: np.ndarray) -> None:
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    values = VALUES if kind == "DataFrame" else VALUES[:, 0]
    made = getattr(module, kind)(values)
    taken = Table(made, name="x").take(rows)
    assert type(taken) is type(made)
    assert np.array_equal(taken.to_numpy(), values[rows])


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_are_told_by_the_name_of_their_class(library: str) -> None:
    """What is called as pandas or polars would be, where these are not installed."""

    class Located:
        def __getitem__(self, rows):
            return ("iloc", rows)

    class Frame:
        shape = (8, 3)
        iloc = Located()

        def __getitem__(self, rows):
            return ("item", rows)

    Frame.__module__ = f"{library}.core.frame"
    way, rows = Table(Frame(), name="x").take(np.array([5, 1]))
    assert way == ("iloc" if library == "pandas" else "item")
    assert rows.tolist() == [5, 1]


@pytest.mark.parametrize("data", [[1, 2], None, "text", 3.0, {"a": 1}, object()])
def test_other_things_are_refused(data) -> None:
    with pytest.raises(UsageError, match=r"x is a .*; give a numpy array"):
        Table(data, name="x")


def test_neighbours_are_not_copied() -> None:
    assert np.shares_memory(Table(VALUES, name="x").take(np.array([2, 3, 4])), VALUES)


def test_a_model_is_trained_on_a_sparse_matrix() -> None:
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    features, labels = functions.regression()
    options = {"epochs": 2, "workers": 3, "hyperparameters": {"lr": 0.1}}
    options |= {"batch_size": 10, "scheme": "disjoint_random"}

    def update(model, hyperparameters, x, y):
        wrong = x @ model[0] + model[1] - y
        return [x.T @ wrong / x.shape[0], wrong.mean(axis=0)]

    one, other = (
        gangline.paramserv(functions.start(), x, labels, update, functions.aggregate, **options)
        for x in (features, sparse.coo_matrix(features))
    )
    np.testing.assert_allclose(one.model[0], other.model[0], atol=1e-12)


@pytest.mark.parametrize("kind", ["csr_matrix", "csr_array"])
@pytest.mark.parametrize(("start", "stop"), [(0, 8), (2, 5), (7, 8), (3, 3)])
def test_neighbours_of_a_sparse_matrix_are_not_copied(kind: str, start: int, stop: int) -> None:
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    matrix = getattr(sparse, kind)(np.where(VALUES % 3 == 1, VALUES, 0))
    taken = Table(matrix, name="x").run(start, stop)
    assert type(taken) is type(matrix)
    assert np.array_equal(taken.toarray(), matrix.toarray()[start:stop])
    assert start == stop or np.shares_memory(taken.data, matrix.data)
