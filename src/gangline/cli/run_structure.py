# SPDX-License-Identifier: Apache-2.0
"""How the workers of `gangline run` exchange: all in one ring, or by the tree of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gangline.spec.errors import UsageError
from gangline.spec.plan import Plan
from gangline.spec.structure import Structure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.spec.cluster import Node

FLAT = "flat"


def read_structure(text: str, worker_nodes: Sequence[Node]) -> Structure | None:
    """The tree of the plan that is named, for workers on these nodes; None where it is `flat`."""
    if text == FLAT:
        return None
    path = Path(text)
    if not path.is_file():
        raise UsageError(
            f"--structure {text} is neither `{FLAT}` nor a file; give one that `gangline plan` wrote"
        )
    root = Plan.from_file(path).root
    planned = {node for leaf in root.leaves() for node in leaf.members}
    by_node = _workers_by_node(worker_nodes)
    # A plan names the nodes, or each of their workers, as `gangline probe` does.
    by_worker = _by_worker(by_node)
    return Structure.from_plan(root, by_worker if planned == set(by_worker) else by_node)


def _workers_by_node(worker_nodes: Sequence[Node]) -> dict[str, list[int]]:
    by_node: dict[str, list[int]] = {}
    for worker, node in enumerate(worker_nodes):
        by_node.setdefault(node.name, []).append(worker)
    return by_node


def _by_worker(by_node: dict[str, list[int]]) -> dict[str, list[int]]:
    return {
        name if len(workers) == 1 else f"{name}.{number}": [worker]
        for name, workers in by_node.items()
        for number, worker in enumerate(workers)
    }
