# SPDX-License-Identifier: Apache-2.0
"""Sums, least squares and clusters of a matrix, dense or sparse."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gangline.local.table import library_of
from gangline.mapreduce.api import map as map_rows
from gangline.mapreduce.api import reduce as reduce_rows
from gangline.spec.errors import UsageError

Array = npt.NDArray[np.float64]


def add_matrices(one: Any, other: Any, **loop: Any) -> dict[str, Any]:
    """The sum of two matrices."""
    if one.shape != other.shape:
        raise UsageError(
            f"matrices of {_shape(one)} and {_shape(other)} cannot be added: give two of one shape"
        )
    total = map_rows(lambda rows, others: rows + others, one, other, **loop)
    return {
        "rows": one.shape[0],
        "columns": one.shape[1],
        "sum": float(total.sum()),
        "matrix": total,
    }


def fit_line(data: Any, **loop: Any) -> dict[str, Any]:
    """Least squares by the normal equations: the last column as a linear function of the others.

    Each chunk of rows A = [X, 1, y] adds its AᵀA; XᵀX and Xᵀy are parts of the sum.
    """
    gram = reduce_rows(_gram, data, **loop)
    last = gram.shape[0] - 1
    fitted, *_ = np.linalg.lstsq(gram[:last, :last], gram[:last, last], rcond=None)
    residual = np.append(fitted, -1.0)
    return {
        "rows": data.shape[0],
        "coefficients": fitted[:-1].tolist(),
        "intercept": float(fitted[-1]),
        "mean_squared_error": max(0.0, float(residual @ gram @ residual)) / max(1, data.shape[0]),
    }


def k_means(
    data: Any, *, clusters: int = 8, iterations: int = 20, seed: int = 0, **loop: Any
) -> dict[str, Any]:
    """Lloyd's algorithm, from rows that are drawn as first centres, until the centres stay."""
    if not 1 <= clusters <= data.shape[0]:
        raise UsageError(f"{clusters} clusters of {data.shape[0]} rows: give 1 to as many as rows")
    drawn = np.random.default_rng(seed).choice(data.shape[0], size=clusters, replace=False)
    centres, sums, done = _plain(data[np.sort(drawn)]), None, 0
    while done < iterations:
        sums = reduce_rows(nearest_sums, data, centres, broadcast=(1,), seed=seed, **loop)
        counts = sums[:, -2:-1]
        moved = np.where(counts > 0, sums[:, :-2] / np.maximum(counts, 1), centres)
        done += 1
        if np.array_equal(moved, centres):
            break
        centres = moved
    assert sums is not None, "there is at least one iteration"
    return {
        "rows": data.shape[0],
        "sizes": sums[:, -2].astype(int).tolist(),
        "inertia": float(sums[:, -1].sum()),
        "iterations": done,
        "centres": centres,
    }


def nearest_sums(rows: Any, centres: Array) -> Array:
    """Of each centre, over the rows that are nearest to it: their sum, number and squared distances."""
    squares = rows.multiply(rows) if library_of(rows) == "scipy" else rows * rows
    own = np.asarray(squares.sum(axis=1)).reshape(-1)
    distances = own[:, None] - 2 * np.asarray(rows @ centres.T) + (centres**2).sum(axis=1)
    nearest = distances.argmin(axis=1)
    chosen = np.zeros((len(centres), len(nearest)))
    chosen[nearest, np.arange(len(nearest))] = 1.0
    inertia = np.bincount(nearest, distances.min(axis=1).clip(min=0), minlength=len(centres))
    counts = chosen.sum(axis=1)
    return np.column_stack([_plain(chosen @ rows), counts, inertia])


def _gram(rows: Any) -> Array:
    values = _plain(rows)
    ones = np.ones((len(values), 1))
    whole = np.hstack([values[:, :-1], ones, values[:, -1:]])
    return whole.T @ whole


def _plain(rows: Any) -> Array:
    """As an array of floats, whatever it was."""
    dense = rows.toarray() if library_of(rows) == "scipy" else rows
    return np.asarray(dense, dtype=np.float64)


def _shape(matrix: Any) -> str:
    return f"{matrix.shape[0]} × {matrix.shape[1]}"
