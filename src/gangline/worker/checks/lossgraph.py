# SPDX-License-Identifier: Apache-2.0
"""How a loss was reduced to one number, as far as its graph says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

MEAN, SUM = "mean", "sum"
_BY_NUMBER = {1: MEAN, 2: SUM}
"""What torch's loss functions save as their reduction."""
_COMBINING = (
    "Add",
    "Cat",
    "Div",
    "Mul",
    "Neg",
    "Select",
    "Squeeze",
    "Stack",
    "Sub",
    "Sum",
    "ToCopy",
    "Unsqueeze",
    "View",
)
"""Nodes by which losses are combined, so that a reduction may lie behind them."""
_MAX_NODES = 64


def reductions_of(losses: Iterable[Tensor]) -> set[str]:
    """`mean` and `sum`, as they are found near the losses; what is further away is the model."""
    found: set[str] = set()
    waiting: list[Any] = [loss.grad_fn for loss in losses]
    for _ in range(_MAX_NODES):
        if not waiting:
            break
        node = waiting.pop()
        if node is None:
            continue
        name = type(node).__name__
        saved = _BY_NUMBER.get(getattr(node, "_saved_reduction", 0))
        if saved is not None or name.startswith("Mean"):
            found.add(saved or MEAN)
            continue
        if name.startswith("Sum"):
            found.add(SUM)
        if name.startswith(_COMBINING):
            waiting += [following for following, _ in node.next_functions]
    return found
