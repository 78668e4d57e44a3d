# SPDX-License-Identifier: Apache-2.0
"""What `gangline apply` can do: each algorithm is a loop or two over the rows of a matrix."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from gangline.mapreduce.algorithms.components import connected_components
from gangline.mapreduce.algorithms.dense import add_matrices, fit_line, k_means

if TYPE_CHECKING:
    from collections.abc import Mapping

Algorithm = Callable[..., dict[str, Any]]
"""Called with the matrices and, by name, the options of its loops; returns what it found."""


class Named(NamedTuple):
    """An algorithm, and what it is given."""

    run: Algorithm
    num_files: int
    is_graph: bool = False
    """Whether its file is a list of edges."""


ALGORITHMS: Mapping[str, Named] = MappingProxyType(
    {
        "connected-components": Named(connected_components, 1, is_graph=True),
        "matrix-addition": Named(add_matrices, 2),
        "linear-regression": Named(fit_line, 1),
        "kmeans": Named(k_means, 1),
    }
)
