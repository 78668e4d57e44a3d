# SPDX-License-Identifier: Apache-2.0
"""Whether tensors are those of a batch, views of them, or copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor


def tensors_in(batch: Any, depth: int = 3) -> Iterator[Tensor]:
    """The tensors in a batch: in containers, and in objects such as a graph's data."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif depth and hasattr(leaf, "__dict__") and not isinstance(leaf, type):
            yield from tensors_in(vars(leaf), depth - 1)


def is_part(batch: Iterable[Tensor], given: Iterable[Tensor]) -> bool:
    """Whether one of the given tensors is one of the batch's, or a view that begins inside of it."""
    starts = [tensor.data_ptr() for tensor in given if tensor.numel()]
    return any(
        mine.data_ptr() <= start < mine.data_ptr() + _extent(mine)
        for mine in batch
        if mine.layout is torch.strided and mine.numel()
        for start in starts
    )


def _extent(tensor: Tensor) -> int:
    """Bytes from the first value of a tensor to behind its last one."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.itemsize * (1 + sum((size - 1) * stride for size, stride in strides))


def is_copied(batch: Iterable[Tensor], given: Tensor) -> bool:
    """Whether a tensor has the values of one of the batch's, on another device, say."""
    return any(
        mine.shape == given.shape
        and mine.dtype == given.dtype
        and mine.layout is torch.strided
        and torch.equal(mine, given.detach().to(mine.device))
        for mine in batch
    )
