# SPDX-License-Identifier: Apache-2.0
"""When the graph of a loss was made: autograd numbers its nodes as it makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gangline.worker.samples.batch_tensors import tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MAX_NODES = 100_000
"""How much of a loss's graph is looked at."""
_LEAF = 2**64 - 1
"""The number of the nodes that stand for parameters."""


def next_number() -> int:
    """The number of the next node that autograd makes in this thread."""
    return int(torch._C._autograd._get_sequence_nr())


def number_of(losses: Any) -> int | None:
    """The number of the newest node among these losses; None where there is none."""
    numbers = [node._sequence_nr() for node in _nodes(losses)]
    return max(numbers, default=None)


def _nodes(losses: Any) -> list[Any]:
    return [loss.grad_fn for loss in tensors_in(losses) if loss.grad_fn is not None]


def is_computed_since(losses: Any, mark: int) -> bool:
    """Whether a parameter was used since then: to scale a loss that was there already uses none."""
    nodes: list[Any] = _nodes(losses)
    seen: set[Any] = set()
    while nodes:
        node = nodes.pop()
        if node in seen or node._sequence_nr() < mark:
            continue  # what it is made of is older still
        seen.add(node)
        following = [one for one, _ in node.next_functions if one is not None]
        if any(one.name().endswith("AccumulateGrad") for one in following):
            return True
        nodes += following
    return False


def spans(losses: Any, marks: Sequence[int]) -> bool:
    """Whether the graph of these losses was made partly before one of the marks, and partly after."""
    numbers = list(numbers_in(losses))
    return bool(numbers) and any(min(numbers) < mark <= max(numbers) for mark in marks)


def numbers_in(losses: Any, *, since: int = 0) -> Iterator[int]:
    """The numbers of the nodes that these losses were computed by, as far as they were made since."""
    nodes: list[Any] = _nodes(losses)
    seen: set[Any] = set()
    while nodes and len(seen) < _MAX_NODES:
        node = nodes.pop()
        number = node._sequence_nr()
        if number == _LEAF or number < since or node in seen:
            continue
        seen.add(node)
        yield number
        nodes += [following for following, _ in node.next_functions if following is not None]
