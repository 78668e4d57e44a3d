# SPDX-License-Identifier: Apache-2.0
"""Sparse gradients: in a parameter's place in its unit, and summed over a group by their rows.

The place holds a whole gradient, of which the rows in `Slot.rows` count; all others are zero. So what
is moved, cleared and sent is these rows. Tables (`nn.Embedding(sparse=True)`, `nn.EmbeddingBag`) have
units of their own: members of a group have gradients of different rows, whose union is summed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.collectives import Group, Header
    from gangline.worker.gradients.layout import Slot

_WHOLE = -1


def tables_in(models: Sequence[nn.Module]) -> set[int]:
    """The ids of the parameters that are tables whose layers ask for sparse gradients."""
    return {
        id(module.weight)
        for model in models
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
    }


def is_by_rows(gradient: Tensor) -> bool:
    """Whether a gradient is sparse, with whole rows as its values."""
    return gradient.layout == torch.sparse_coo and gradient.sparse_dim() == 1


def clear(slot: Slot) -> None:
    """The place holds nothing: zero everywhere."""
    if slot.rows is None:
        slot.place.zero_()
    elif len(slot.rows):
        slot.place.index_fill_(0, slot.rows, 0)
    slot.rows = torch.empty(0, dtype=torch.int64, device=slot.place.device)


def collect(slot: Slot, weight: float, *, is_kept: bool) -> None:
    """Moves a sparse gradient, weighted, into its place; `is_kept`: adds it to what is there."""
    if not is_kept:
        clear(slot)
    if weight == 0:  # a ghost's gradient counts in no row
        return
    gradient = slot.gradient.coalesce()
    rows = gradient.indices()[0]
    slot.place.index_add_(0, rows, gradient.values(), alpha=weight)
    if slot.rows is not None:
        slot.rows = torch.unique(torch.cat([slot.rows, rows])) if len(slot.rows) else rows


def square(slot: Slot) -> Tensor:
    """The square of the norm of what the place holds."""
    held = slot.place if slot.rows is None else slot.place.index_select(0, slot.rows)
    norm: Tensor = torch.linalg.vector_norm(
        held, dtype=torch.promote_types(held.dtype, torch.float32)
    )
    return norm.square_()


def sum_rows(group: Group, slot: Slot, header: Header | None) -> None:
    """Sums the rows that members have, over all of them: a gradient of the union of their rows.

    If one of them has a whole gradient, so has the sum.
    """
    place, own = slot.place, slot.rows
    count = _WHOLE if own is None else len(own)
    counts = [int(one) for one in group.all_gather(torch.tensor([count], dtype=torch.int64))]
    if own is None or _WHOLE in counts:
        whole = place.reshape(-1)
        group.all_reduce(whole, header)
        if whole.data_ptr() != place.data_ptr():
            place.copy_(whole.view_as(place))
        slot.rows = None
        return
    padded = torch.zeros(max(counts), dtype=torch.int64)
    padded[:count] = own.cpu()
    gathered = group.all_gather(padded) if max(counts) else []
    named = [rows[:length] for rows, length in zip(gathered, counts, strict=False)]
    union = torch.unique(torch.cat(named)) if named else padded
    union = union.to(place.device)
    summed = place.index_select(0, union)  # rows that this member has not are zero
    group.all_reduce(summed.view(-1), header)
    place.index_copy_(0, union, summed)
    slot.rows = union
