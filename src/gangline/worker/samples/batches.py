# SPDX-License-Identifier: Apache-2.0
"""Batches of indices, for loops that have no DataLoader and index their data themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.data import DataLoader

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


def index_loader(
    length: int,
    *,
    global_batch: int,
    shuffle: bool = False,
    sampler: Iterable[int] | None = None,
    generator: torch.Generator | None = None,
    drop_last: bool = False,
) -> DataLoader[list[int]]:
    """A DataLoader over 0 … length - 1 whose batches are lists of these numbers."""
    for name, value in (("length", length), ("global_batch", global_batch)):
        if not isinstance(value, int) or value < 1:
            raise UsageError(
                f"{name} is a number of samples, at least 1, not {value!r}: call "
                "gangline.batches(len(data), global_batch=64)"
            )
    if sampler is not None and shuffle:
        raise UsageError("a sampler draws the order itself: leave out shuffle=, or the sampler=")
    loader: DataLoader[list[int]] = DataLoader(
        range(length),  # type: ignore[arg-type]
        batch_size=global_batch,
        shuffle=shuffle,
        sampler=sampler,
        generator=generator,
        drop_last=drop_last,
        collate_fn=list,
    )
    return loader
