# SPDX-License-Identifier: Apache-2.0
"""The nouns: a chunk of a loop, the loop itself, and who says how large the next chunk is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.scheduling.speeds import Speeds
    from gangline.scheduling.timing import Timing


class Chunk(NamedTuple):
    """The items start … stop − 1 of a loop, which one worker does at one go."""

    start: int
    stop: int
    queue: int = 0
    """Which queue it came from; 0 where there is one only."""

    @property
    def size(self) -> int:
        """How many items it has."""
        return self.stop - self.start


class Scheme(Protocol):
    """Says how large the next chunk is. One object serves one loop, and is asked by one at a time."""

    def next_size(self, worker: int, remaining: int) -> int:
        """The size of the chunk that `worker` gets now, while `remaining` items are not handed out."""

    def finished(self, worker: int, size: int, seconds: float, overhead_s: float = 0.0) -> None:
        """`worker` has done `size` items in `seconds`, after `overhead_s` of asking and waiting.

        A chunk may be told of in parts. Schemes that do not learn ignore it.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What is to be cut, and what is known of it: all that a scheme is made from."""

    total: int
    """N, the number of items."""
    workers: int
    """P, who are numbered 0 … P − 1."""
    grain: int = 1
    """The smallest chunk, but for the last one."""
    weights: tuple[float, ...] = ()
    """How fast each worker is beside the others; their mean is 1."""
    timing: Timing | None = None
    """What an item takes, where that is known."""
    speeds: Speeds | None = None
    """What earlier loops have shown of the workers; the loops of one program share it."""

    @classmethod
    def of(
        cls,
        total: int,
        workers: int,
        *,
        grain: int = 1,
        weights: Sequence[float] | None = None,
        timing: Timing | None = None,
        speeds: Speeds | None = None,
    ) -> Loop:
        """A loop whose numbers are checked; weights need not sum to anything. Raises UsageError."""
        for name, value, least in (
            ("items", total, 0),
            ("workers", workers, 1),
            ("grain", grain, 1),
        ):
            if value < least:
                raise UsageError(f"a loop with {name} = {value}: it must be at least {least}")
        return cls(
            total=total,
            workers=workers,
            grain=grain,
            weights=_normalised(weights, workers),
            timing=timing,
            speeds=speeds,
        )


def _normalised(weights: Sequence[float] | None, workers: int) -> tuple[float, ...]:
    if weights is None:
        return (1.0,) * workers
    if len(weights) != workers:
        raise UsageError(f"{len(weights)} weights for {workers} workers: give one for each")
    if not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise UsageError(f"the weights {list(weights)}: each must be a number above 0")
    mean = sum(weights) / workers
    return tuple(weight / mean for weight in weights)
