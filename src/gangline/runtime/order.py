# SPDX-License-Identifier: Apache-2.0
"""The order of an epoch: one sequence of sample indices that all workers agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch.utils.data import RandomSampler, SequentialSampler

from gangline.runtime.position import ORDER
from gangline.spec.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gangline.collectives import Group


class Agree(Protocol):
    """Runs an exchange that all workers make at the same place, and remembers it by its key."""

    def __call__(
        self, exchange: Callable[[Group], torch.Tensor], key: tuple[str, int], /
    ) -> torch.Tensor: ...


class Order(Protocol):
    """Says in which order an epoch uses the samples."""

    @property
    def name(self) -> str: ...

    @property
    def length(self) -> int: ...

    def indices(self, epoch: int, agree: Agree) -> Sequence[int]: ...


class SequentialOrder:
    """As they are stored."""

    name = "sequential"

    def __init__(self, length: int) -> None:
        self.length = length

    def indices(self, epoch: int, agree: Agree) -> Sequence[int]:
        return range(self.length)


class ShuffledOrder:
    """A permutation that follows from the seed and the epoch, so that nothing needs to be sent."""

    name = "shuffled"

    def __init__(self, length: int, seed: int) -> None:
        self.length = length
        self._seed = seed

    def indices(self, epoch: int, agree: Agree) -> Sequence[int]:
        generator = torch.Generator().manual_seed(self._seed + epoch)
        order: list[int] = torch.randperm(self.length, generator=generator).tolist()
        return order


class DrawnOrder:
    """Whatever a user's sampler draws on rank 0, sent to the others at the start of each epoch."""

    def __init__(self, sampler: Iterable[int]) -> None:
        self._sampler = sampler
        self.name = f"drawn by {type(sampler).__name__}"
        try:
            self.length = len(sampler)  # type: ignore[arg-type]
        except TypeError as error:
            raise UnsupportedError(
                f"the sampler {type(sampler).__name__} has no __len__: gangline must know how many "
                "samples an epoch has"
            ) from error

    def indices(self, epoch: int, agree: Agree) -> Sequence[int]:
        def draw(group: Group) -> torch.Tensor:
            drawn = torch.zeros(self.length, dtype=torch.int64)
            if group.rank == 0:
                drawn = torch.tensor(list(self._sampler), dtype=torch.int64)
                if len(drawn) != self.length:
                    raise UsageError(
                        f"the sampler {type(self._sampler).__name__} drew {len(drawn)} samples, and "
                        f"its __len__ says {self.length}: make the two agree"
                    )
            group.broadcast(drawn, 0)
            return drawn

        order: list[int] = agree(draw, (ORDER, epoch)).tolist()
        return order


def order_of(sampler: Iterable[int], *, length: int, seed: int) -> Order:
    """The order that a DataLoader's sampler stands for."""
    if type(sampler) is SequentialSampler:
        return SequentialOrder(length)
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == length:
        return ShuffledOrder(length, seed)
    return DrawnOrder(sampler)
