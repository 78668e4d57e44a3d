# SPDX-License-Identifier: Apache-2.0
"""Global batches that a user's own batch sampler draws: each has the size that it was drawn with.

Rank 0 draws an epoch's batches and sends them to the others. Each is one global batch, cut by the
shares as a ragged last batch is.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

import torch

from gangline.spec.errors import UnsupportedError, UsageError
from gangline.worker.samples.order import DrawnOrder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gangline.worker.samples.order import Agree, Company, Indices


class BatchedIndices(list[int]):
    """An epoch's order that knows where its batches end."""

    def __init__(self, indices: Iterable[int], sizes: Iterable[int]) -> None:
        super().__init__(indices)
        self.stops = list(accumulate(sizes))

    def stop_after(self, start: int) -> int:
        """Where the batch ends that begins at `start`."""
        number = bisect_right(self.stops, start)
        return self.stops[number] if number < len(self.stops) else len(self)


class DrawnBatches(DrawnOrder):
    """Whatever a user's batch sampler draws on rank 0."""

    def __init__(self, sampler: Iterable[Sequence[int]]) -> None:
        super().__init__(sampler)  # type: ignore[arg-type]
        self.name = f"batches drawn by {type(sampler).__name__}"

    def _find_length(self) -> int:
        """How many batches an epoch has. How many samples is known when they are drawn."""
        return num_batches(self._sampler)

    def indices(self, epoch: int, agree: Agree, company: Company) -> BatchedIndices:
        drawn = self._agree_on_drawn(epoch, agree).tolist()
        sizes = drawn[: self.length]
        return BatchedIndices(drawn[self.length :], sizes)

    def end(self) -> None:
        """All batches were drawn when the epoch began."""

    def _draw(self) -> torch.Tensor:
        """The batches' sizes, then their samples."""
        batches = self._draw_all()
        numbers = [len(batch) for batch in batches]
        numbers += [index for batch in batches for index in batch]
        return torch.tensor(numbers, dtype=torch.int64)

    def _draw_all(self) -> list[list[int]]:
        kind = type(self._sampler).__name__
        drawn: Iterable[Any] = islice(self._sampler, self.length + 1)
        batches = [_numbers(batch, kind) for batch in drawn]
        if len(batches) != self.length:
            found = "more" if len(batches) > self.length else f"{len(batches)}"
            raise UsageError(
                f"the batch sampler {kind} drew {found} batches, and its __len__ says {self.length}: "
                "make the two agree"
            )
        if not all(batches):
            raise UsageError(f"the batch sampler {kind} drew an empty batch: leave it out")
        return batches


def _numbers(batch: Sequence[Any], kind: str) -> list[int]:
    try:
        return [int(index) for index in batch]
    except (TypeError, ValueError) as error:
        raise UnsupportedError(
            f"the batch sampler {kind} drew {batch!r}: only batches of whole numbers can be sent to "
            "other workers"
        ) from error


def window_stop(indices: Indices, start: int, global_batch: int) -> int:
    """Where the global batch ends that begins at `start` of the epoch's order."""
    if isinstance(indices, BatchedIndices):
        return indices.stop_after(start)
    return start + global_batch


def num_batches(sampler: Any) -> int:
    """How many batches an epoch has."""
    try:
        return len(sampler)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise UnsupportedError(
            f"the batch sampler {type(sampler).__name__} has no usable __len__: gangline must know how "
            "many batches an epoch has. Give it one, or the order by sampler= and the size by "
            "global_batch="
        ) from error


def usual_size(sampler: Any, *, length: int) -> int:
    """About how many samples a batch has: what the shares are made for."""
    size = getattr(sampler, "batch_size", None)
    if isinstance(size, int) and size > 0:
        return min(size, length)
    return max(1, min(length, round(length / max(1, num_batches(sampler)))))
