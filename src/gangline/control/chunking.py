# SPDX-License-Identifier: Apache-2.0
"""How large the next chunk is, by a scheme of `scheduling`, from numbers alone.

The coordinator's state is written down and read again, and a scheme that runs cannot be. So the scheme
is made anew for each chunk, and brought to where it was: its sizes follow from how many chunks were
handed out, from how much is left, and from the weights. That holds for every scheme that does not learn
from its own chunks, and the others are refused. `WF2` goes by weights, which the caller may learn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.scheduling import SchemeSpec, parse_scheme
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_scheme(text: str) -> SchemeSpec:
    """The scheme of this name, if the coordinator can go by it. Raises UsageError otherwise."""
    scheme = parse_scheme(text)
    if scheme.is_learning:
        raise UsageError(
            f"scheme {text!r} learns from the chunks that it hands out, and the coordinator keeps no "
            "such state: take WF2, whose weights are the speeds that were measured, or one that "
            "follows from the numbers alone, such as GSS, FAC2 or TSS"
        )
    return scheme


def chunk_size(
    text: str,
    *,
    total: int,
    workers: int,
    count: int,
    remaining: int,
    worker: int = 0,
    weights: Sequence[float] | None = None,
    grain: int = 1,
) -> int:
    """The size of chunk `count` of a loop of `total` items, of which so many remain, for `worker`.

    At least `grain`, and at most what remains.
    """
    scheme = parse_scheme(text).make(total, workers, grain=grain, weights=weights)
    for _ in range(count):
        scheme.next_size(0, remaining)
    return scheme.next_size(worker, remaining)
