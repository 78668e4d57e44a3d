# SPDX-License-Identifier: Apache-2.0
"""How an epoch is cut into steps, shares and micro-batches: pure arithmetic that all workers repeat.

The order of an epoch is one sequence of sample indices. Each step takes as many of the next ones as
the view's shares sum up to, cuts them by these shares, and each share into the parts of the
accumulation window. Every worker can compute everybody's part, so nothing needs to be said.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from gangline.collectives.protocol import part_bounds
from gangline.planning.allocation.ragged import cut_shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.worker.samples.pulling import Pool


OPEN = 0
"""In place of the number of parts, where it is not known."""


class Handout(NamedTuple):
    """One batch for this worker: which part of the epoch's order, and how much it counts."""

    epoch: int
    step: int
    """Counts optimizer updates since the start of the job."""
    view: int
    micro: int
    """Which part of the accumulation window this is."""
    num_micros: int
    start: int
    stop: int
    """The samples start … stop - 1 of the epoch's order are this worker's."""
    window_stop: int
    """Where in the epoch's order the next window begins."""
    share: int
    """Samples of the whole window, on this worker."""
    total: int
    """Samples of the whole window, over all workers."""
    usual_share: int | None = None
    """This worker's share of a window of the usual size, where this one was drawn with its own."""
    pool: Pool | None = None
    """Where parts are pulled: what of. Then the share is what this worker has got so far."""
    parts: tuple[tuple[int, int], ...] = ()
    """And these are all parts of it."""

    @property
    def samples(self) -> int:
        return self.stop - self.start

    def told(self, compute_s: float) -> tuple[int, float]:
        """The share and what it cost, as the coordinator compares them: for windows of one size."""
        if self.usual_share is None or self.share == 0:
            return self.share, compute_s
        return self.usual_share, compute_s * self.usual_share / self.share

    @property
    def is_update(self) -> bool:
        """Whether the window is complete with this batch, so that the optimizer may step."""
        return self.micro == self.num_micros - 1

    @property
    def is_open(self) -> bool:
        """Whether it is not known yet if this worker gets another part of the window."""
        return self.num_micros == OPEN

    def closed(self) -> Handout:
        """The same, and it is known that it is the last part of the window."""
        return self._replace(num_micros=self.micro + 1)


def cut_window(
    total: int, shares: Sequence[int], *, rank: int, num_micros: int, minimum: int = 1
) -> list[tuple[int, int]]:
    """This rank's micro-batches within a window of `total` samples, as (start, stop) offsets."""
    parts = cut_shares(total, shares, minimum=minimum)
    start = sum(parts[:rank])
    whole = parts[rank]
    pieces = max(1, min(num_micros, whole // minimum))
    bounds = part_bounds(whole, pieces) + [whole] * (num_micros - pieces)
    return [(start + low, start + high) for low, high in pairwise(bounds)]


def num_steps(length: int, *, global_batch: int, drop_last: bool) -> int:
    """Optimizer updates per epoch of `length` samples."""
    whole, rest = divmod(length, global_batch)
    return whole + (1 if rest and not drop_last else 0)
