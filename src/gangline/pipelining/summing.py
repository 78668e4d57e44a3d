# SPDX-License-Identifier: Apache-2.0
"""Sums the gradients of layers over all that hold them, and brings their buffers together.

Who keeps a copy of a layer takes part and adds nothing: it gets the same gradient, and so the same
parameters, as who computes the layer. That is how a stage outlives its machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.collectives import Group
    from gangline.pipelining.holding import Holdings


def sum_gradients(
    group: Group, holdings: Holdings, layers: Sequence[int], *, is_computing: bool
) -> None:
    """Replaces the gradients of these layers by their sums; None where nobody has one."""
    parameters = [p for index in layers for p in holdings.parameters(index).values()]
    by_dtype: dict[torch.dtype, list[torch.nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
    for dtype, some in by_dtype.items():
        flags = torch.tensor(
            [float(is_computing and p.grad is not None) for p in some], dtype=dtype
        )
        parts = [
            p.grad.reshape(-1).cpu()
            if is_computing and p.grad is not None
            else torch.zeros(p.numel(), dtype=dtype)
            for p in some
        ]
        flat = torch.cat([flags, *parts])
        group.all_reduce(flat)
        place = len(some)
        for number, parameter in enumerate(some):
            piece = flat[place : place + parameter.numel()]
            place += parameter.numel()
            has_one = bool(flat[number] > 0)
            parameter.grad = piece.view_as(parameter).to(parameter.device) if has_one else None


def mean_buffers(
    group: Group, holdings: Holdings, layers: Sequence[int], *, weight: float, is_first: bool
) -> list[tuple[Tensor, Tensor]]:
    """Buffers and what they should be: means by samples over pipelines; whole numbers are the first's.

    Nothing is changed yet: the step may still fail.
    """
    buffers = [b for index in layers for b in holdings.buffers(index).values()]
    if not buffers:
        return []
    parts = [
        b.reshape(-1).to("cpu", torch.float64) * (weight if b.is_floating_point() else is_first)
        for b in buffers
    ]
    flat = torch.cat(parts)
    group.all_reduce(flat)
    found, place = [], 0
    for buffer in buffers:
        piece = flat[place : place + buffer.numel()].view_as(buffer)
        found.append((buffer, piece.to(buffer.device, buffer.dtype)))
        place += buffer.numel()
    return found
