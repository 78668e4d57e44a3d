# SPDX-License-Identifier: Apache-2.0
"""Which samples a step has, in which order, and who computes which of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from gangline.collectives.protocol import part_bounds
from gangline.pipelining.stage import Piece
from gangline.planning.allocation.ragged import cut_shares
from gangline.spec.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.utils.data import DataLoader


class Samples:
    """The data set of a loader, in an order that all workers know without asking."""

    def __init__(self, loader: DataLoader[Any], *, global_batch: int | None, seed: int) -> None:
        sampler = loader.batch_sampler
        if type(sampler) is not BatchSampler or type(sampler.sampler) not in (
            RandomSampler,
            SequentialSampler,
        ):
            raise UnsupportedError(
                "pipeline() takes a DataLoader with a batch_size, and shuffle=True or False: a sampler "
                "of your own would draw another order on each worker. Choose the samples by "
                "torch.utils.data.Subset"
            )
        self._loader, self._seed = loader, seed
        self._is_shuffled = type(sampler.sampler) is RandomSampler
        self.length = len(loader.dataset)  # type: ignore[arg-type]
        self.batch = global_batch or sampler.batch_size
        drop_last = sampler.drop_last
        whole, rest = divmod(self.length, self.batch)
        self.steps_per_epoch = whole + int(bool(rest) and not drop_last)
        if not self.steps_per_epoch:
            raise UnsupportedError(
                f"the data set has {self.length} samples, fewer than one global batch of {self.batch}, "
                "and the loader drops the last one: there is nothing to do"
            )
        self._order: tuple[int, list[int]] = (-1, [])

    def bounds(self, step: int) -> tuple[int, int]:
        """The samples of a step, as places in its epoch's order."""
        start = step % self.steps_per_epoch * self.batch
        return start, min(start + self.batch, self.length)

    def fetch(self, epoch: int, start: int, stop: int) -> tuple[Tensor, Any]:
        """Inputs and targets of the samples at these places of the epoch's order."""
        if self._order[0] != epoch:
            self._order = (epoch, self._draw(epoch))
        return self._collate(self._order[1][start:stop])

    def first(self, count: int) -> Tensor:
        """The inputs of some samples, to measure with."""
        return self._collate([index % self.length for index in range(count)])[0]

    def _draw(self, epoch: int) -> list[int]:
        if not self._is_shuffled:
            return list(range(self.length))
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        order: list[int] = torch.randperm(self.length, generator=generator).tolist()
        return order

    def _collate(self, indices: list[int]) -> tuple[Tensor, Any]:
        assert self._loader.collate_fn is not None
        batch = self._loader.collate_fn([self._loader.dataset[index] for index in indices])
        is_pair = isinstance(batch, list | tuple) and len(batch) == 2
        if not is_pair or not isinstance(batch[0], Tensor):
            raise UnsupportedError(
                "pipeline() takes batches of two: a tensor that the model is given, and the target for "
                f"the loss; this loader makes {type(batch).__name__}. Give it a collate_fn that "
                "makes such pairs"
            )
        return batch[0], batch[1]


def pieces_of(
    step: int,
    bounds: tuple[int, int],
    shares: Sequence[int],
    micro_batches: Sequence[int],
    *,
    is_mean: bool,
    is_each: bool = False,
) -> list[list[Piece]]:
    """The micro-batches of each pipeline. With `is_each`, each makes an update of its own."""
    start, stop = bounds
    total = stop - start
    found = []
    for part, number in zip(cut_shares(total, shares), micro_batches, strict=True):
        count = min(number, part)
        cuts = part_bounds(part, count) if count else []
        found.append(
            [
                Piece(
                    step=step,
                    number=index,
                    start=start + cuts[index],
                    stop=start + cuts[index + 1],
                    weight=part_of if not is_each else 1.0,
                    counted=part_of,
                )
                for index in range(count)
                for part_of in [(cuts[index + 1] - cuts[index]) / total if is_mean else 1.0]
            ]
        )
        start += part
    return found
