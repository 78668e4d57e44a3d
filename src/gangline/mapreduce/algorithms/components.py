# SPDX-License-Identifier: Apache-2.0
"""The connected components of a graph, by labels that spread to neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gangline.local.table import library_of
from gangline.mapreduce.api import map as map_rows

Labels = npt.NDArray[np.int64]


def connected_components(graph: Any, **loop: Any) -> dict[str, Any]:
    """How many components an undirected graph has, and how large they are.

    `graph` has a row and a column for each node, and is symmetric. In each iteration a node takes the
    largest label among its neighbours and its own, until nothing changes.
    """
    labels = np.arange(1, graph.shape[0] + 1)
    iterations, has_changed = 0, True
    while has_changed:
        spread = map_rows(largest_near, graph, labels, labels, broadcast=(2,), **loop)
        has_changed = not np.array_equal(spread, labels)
        labels, iterations = spread, iterations + 1
    sizes = np.sort(np.unique(labels, return_counts=True)[1])[::-1]
    return {
        "nodes": len(labels),
        "components": len(sizes),
        "largest": int(sizes[0]) if len(sizes) else 0,
        "iterations": iterations,
        "labels": labels,
    }


def largest_near(rows: Any, own: Labels, labels: Labels) -> Labels:
    """Of each node, given by its row of the graph, the largest label nearby."""
    if library_of(rows) != "scipy":
        near: Labels = np.where(rows != 0, labels, 0).max(axis=1, initial=0)
        return np.maximum(near, own)
    spread = own.copy()
    counts = np.diff(rows.indptr)
    has_some = counts > 0
    if has_some.any():
        begins = rows.indptr[:-1][has_some]
        found = np.maximum.reduceat(labels[rows.indices], begins)
        spread[has_some] = np.maximum(own[has_some], found)
    return spread
