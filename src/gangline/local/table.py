# SPDX-License-Identifier: Apache-2.0
"""Rows of whatever the user has: arrays, tensors, sparse matrices, data frames. None is required."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gangline.spec.errors import UsageError

Indices = npt.NDArray[np.int64]

_LIBRARIES = ("pandas", "polars", "scipy", "torch", "numpy")


class Table:
    """Data whose rows can be taken by their numbers."""

    def __init__(self, data: Any, *, name: str) -> None:
        kind = library_of(data)
        if kind is None:
            raise UsageError(
                f"{name} is a {type(data).__name__}, whose rows cannot be taken; give a numpy array, a "
                f"torch tensor, a scipy sparse matrix, or a data frame of pandas or polars"
            )
        self._kind = kind
        # Only some sparse formats can be indexed; this one is made for rows.
        self._data = data.tocsr() if self._kind == "scipy" else data
        if len(data.shape) < 1:
            raise UsageError(
                f"{name} is a single value; give an array whose first axis is the rows"
            )
        self.num_rows = int(data.shape[0])

    def take(self, indices: Indices) -> Any:
        """These rows, of the kind that the user gave; neighbours without copying where that can be."""
        start = int(indices[0])
        is_run = bool(np.array_equal(indices, np.arange(start, start + len(indices))))
        if is_run:
            return self.run(start, start + len(indices))
        if self._kind == "pandas":
            return self._data.iloc[indices]
        if self._kind == "torch":
            return self._data[indices.tolist()]
        return self._data[indices]

    def run(self, start: int, stop: int) -> Any:
        """Neighbouring rows, without copying where that can be."""
        if self._kind == "scipy":
            return _sparse_run(self._data, start, stop)
        if self._kind == "pandas":
            return self._data.iloc[start:stop]
        return self._data[start:stop]


def check_rows(features: Table, labels: Table, *, names: str = "features and labels") -> None:
    """Refuses data that do not belong together."""
    if features.num_rows != labels.num_rows:
        raise UsageError(
            f"{names} differ in their rows: {features.num_rows} and {labels.num_rows}; "
            f"every row needs its label"
        )
    if features.num_rows == 0:
        raise UsageError(f"{names} have no rows; give at least one")


def library_of(data: Any) -> str | None:
    """The library that data with a shape come from; None for anything else.

    Told by the name of the class: nothing is imported for it.
    """
    modules = {base.__module__.split(".")[0] for base in type(data).__mro__}
    for kind in _LIBRARIES:
        if kind in modules and hasattr(data, "shape"):
            return kind
    return None


def _sparse_run(matrix: Any, start: int, stop: int) -> Any:
    """Neighbouring rows of a CSR matrix, which share its values and column numbers.

    Indexing would copy them, and so would the constructor where the run is short.
    """
    begins = matrix.indptr[start : stop + 1]
    inner = slice(begins[0], begins[-1])
    run = type(matrix)((stop - start, matrix.shape[1]), dtype=matrix.dtype)
    run.data, run.indices = matrix.data[inner], matrix.indices[inner]
    run.indptr = begins - begins[0]
    return run
