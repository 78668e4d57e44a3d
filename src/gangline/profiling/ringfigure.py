# SPDX-License-Identifier: Apache-2.0
"""Ring against parameter server over message sizes, with segments inside and outside the L2 cache.

This is paper 000's figure 5, measured on this machine: a few processes exchange tensors over TCP on the
loopback. The ring sends its parts in segments; small ones stay in the cache while they are added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.collectives.wire.nouns import cache_bytes
from gangline.profiling.team import Request, Team

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = tuple(1 << exponent for exponent in range(12, 25, 2))
INSIDE = "ring, segments inside L2"
OUTSIDE = "ring, segments outside L2"
SERVER = "parameter server"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One message size; median seconds of each contender."""

    num_bytes: int
    inside_s: float
    outside_s: float
    server_s: float


class RingFigure(msgspec.Struct, frozen=True, kw_only=True):
    """What `gangline probe --ring` finds."""

    workers: int
    cache_bytes: int
    rows: tuple[Row, ...]

    def series(self) -> dict[str, list[tuple[float, float]]]:
        """The points of each line of the plot."""
        names = {INSIDE: "inside_s", OUTSIDE: "outside_s", SERVER: "server_s"}
        return {
            name: [(float(row.num_bytes), getattr(row, field)) for row in self.rows]
            for name, field in names.items()
        }


def measure_figure(
    workers: int, *, sizes: tuple[int, ...] = SIZES, say: Callable[[str], None]
) -> RingFigure:
    """Measures all sizes; the contenders take turns."""
    cache = cache_bytes()
    inside = min(max(1024, cache // 2), 1 << 28)
    outside = min(4 * cache, 1 << 28)
    rows = []
    with Team(workers) as team:

        def median(what: str, num_bytes: int, segment_bytes: int | None = None) -> float:
            answer = team.ask(
                Request(
                    what=what,
                    num_bytes=num_bytes,
                    segment_bytes=segment_bytes,
                    shared_memory=False,
                )
            )
            return float(np.median(answer.times_s))

        for num_bytes in sizes:
            say(f"exchanging {num_bytes >> 10} KiB among {workers} processes")
            rows.append(
                Row(
                    num_bytes=num_bytes,
                    inside_s=median("ring", num_bytes, inside),
                    outside_s=median("ring", num_bytes, outside),
                    server_s=median("server", num_bytes),
                )
            )
    return RingFigure(workers=workers, cache_bytes=cache, rows=tuple(rows))
