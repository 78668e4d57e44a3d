# SPDX-License-Identifier: Apache-2.0
"""How a DataLoader makes its batches: their order, their size, and whether the last one is dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import BatchSampler

from gangline.spec.errors import UsageError
from gangline.worker.samples.drawn_batches import DrawnBatches, usual_size
from gangline.worker.samples.generators import Numbers, find_numbers
from gangline.worker.samples.order import Order, ShuffledOrder, order_of

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


class Batching(NamedTuple):
    """What `prepare` takes over from a loader."""

    length: int
    """Samples of the data set."""
    batch_size: int
    """Samples of a batch; about, where they have sizes of their own."""
    drop_last: bool
    has_own_sizes: bool
    """Whether the loader's own batch sampler decides which samples are a batch."""


def batching_of(loader: DataLoader[Any]) -> Batching:
    """What kind of batches the loader makes. It was checked."""
    sampler = loader.batch_sampler
    length = len(loader.dataset)  # type: ignore[arg-type]
    if type(sampler) is BatchSampler:
        return Batching(length, sampler.batch_size, sampler.drop_last, has_own_sizes=False)
    size = usual_size(sampler, length=length)
    return Batching(length, size, drop_last=False, has_own_sizes=True)


def loader_order(loader: DataLoader[Any], *, seed: int) -> Order:
    """The order of the loader's samples, or of its batches."""
    sampler = loader.batch_sampler
    assert sampler is not None  # check_loader refuses loaders without batches
    if type(sampler) is BatchSampler:
        return order_of(sampler.sampler, length=batching_of(loader).length, seed=seed)
    return DrawnBatches(sampler)


def generators_of(loader: DataLoader[Any]) -> list[Numbers]:
    """Random numbers whose state a checkpoint must keep: those of the loader and of its sampler.

    Those of a shuffled order are none of them: the epoch's order keeps them.
    """
    sampler, own = loader.batch_sampler, loader.generator
    if isinstance(loader_order(loader, seed=0), ShuffledOrder):
        is_kept = own is getattr(getattr(sampler, "sampler", None), "generator", None)
        return [own] if isinstance(own, torch.Generator) and not is_kept else []
    found = find_numbers(sampler)
    is_known = any(one is own for one in found.values())
    first = [own] if isinstance(own, torch.Generator) and not is_known else []
    return [*first, *found.values()]


def check_batching(
    batching: Batching, sampler: Any, *, global_batch: int | None, max_share: int | None
) -> None:
    """Refuses options that contradict a batch sampler of the loader's own."""
    if not batching.has_own_sizes:
        return
    kind = type(sampler).__name__
    if global_batch is not None:
        raise UsageError(
            f"global_batch={global_batch} was given, and the loader's batch sampler {kind} makes the "
            "batches: each one that it draws is a global batch. Leave out global_batch="
        )
    if max_share is not None:
        raise UsageError(
            f"max_share={max_share} cannot be kept where the batch sampler {kind} decides how large a "
            "batch is: leave out max_share=, and let it draw batches that fit"
        )
