# SPDX-License-Identifier: Apache-2.0
"""How the workers of a run exchange: as planned, all in one ring, or by a given plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gangline.spec.config import AUTO, FLAT
from gangline.spec.errors import UsageError
from gangline.spec.exchange.structure import Structure
from gangline.spec.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Sequence


def structure_of_plan(text: str, nodes: Sequence[str], *, flag: str) -> Structure:
    """The tree of the plan in a file, for workers on these nodes."""
    path = Path(text)
    if not path.is_file():
        raise UsageError(
            f"{flag} {text} is neither `{AUTO}` nor `{FLAT}` nor a file; give one that "
            "`gangline plan` wrote"
        )
    root = Plan.from_file(path).root
    planned = {node for leaf in root.leaves() for node in leaf.members}
    by_node: dict[str, list[int]] = {}
    for worker, node in enumerate(nodes):
        by_node.setdefault(node, []).append(worker)
    # A plan names the nodes, or each of their workers, as `gangline probe` does.
    by_worker = _by_worker(by_node)
    return Structure.from_plan(root, by_worker if planned == set(by_worker) else by_node)


def _by_worker(by_node: dict[str, list[int]]) -> dict[str, list[int]]:
    return {
        name if len(workers) == 1 else f"{name}.{number}": [worker]
        for name, workers in by_node.items()
        for number, worker in enumerate(workers)
    }
