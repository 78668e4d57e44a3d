# SPDX-License-Identifier: Apache-2.0
"""Rows of whatever the user has: arrays, tensors, sparse matrices, data frames. None is required."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gangline.spec.errors import UsageError

Indices = npt.NDArray[np.int64]


class Table:
    """Data whose rows can be taken by their numbers."""

    def __init__(self, data: Any, *, name: str) -> None:
        self._kind = _kind_of(data, name)
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
        which: Any = slice(start, start + len(indices)) if is_run else indices
        if self._kind == "pandas":
            return self._data.iloc[which]
        if self._kind == "torch" and not is_run:
            return self._data[which.tolist()]
        return self._data[which]


def check_rows(features: Table, labels: Table, *, names: str = "features and labels") -> None:
    """Refuses data that do not belong together."""
    if features.num_rows != labels.num_rows:
        raise UsageError(
            f"{names} differ in their rows: {features.num_rows} and {labels.num_rows}; "
            f"every row needs its label"
        )
    if features.num_rows == 0:
        raise UsageError(f"{names} have no rows; give at least one")


def _kind_of(data: Any, name: str) -> str:
    """The library that the data come from, by the name of their class: nothing is imported for it."""
    modules = {base.__module__.split(".")[0] for base in type(data).__mro__}
    for kind in ("pandas", "polars", "scipy", "torch", "numpy"):
        if kind in modules and hasattr(data, "shape"):
            return kind
    raise UsageError(
        f"{name} is a {type(data).__name__}, whose rows cannot be taken; give a numpy array, a torch "
        f"tensor, a scipy sparse matrix, or a data frame of pandas or polars"
    )
