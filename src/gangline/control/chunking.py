# SPDX-License-Identifier: Apache-2.0
"""How large the next chunk is, by a scheme of `scheduling`, from numbers alone.

The coordinator's state is written down and read again, and a scheme that runs cannot be. So the scheme
is made anew then, and brought to where it was: its sizes follow from how many chunks were handed out,
from how much is left, and from the weights. That holds for every scheme that does not learn from its
own chunks, and the others are refused. `WF2` goes by weights, which the caller may learn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangline.scheduling import SchemeSpec, parse_scheme
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.scheduling import Scheme


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


class ChunkSizes:
    """The sizes of the chunks of one loop, one after the other; it can be written down in between."""

    def __init__(
        self,
        text: str,
        *,
        total: int,
        workers: int,
        weights: Sequence[float] | None = None,
        grain: int = 1,
        count: int = 0,
    ) -> None:
        """`count` chunks were handed out before."""
        self._loop = (text, total, workers, None if weights is None else tuple(weights), grain)
        self._count = count
        self._scheme: Scheme | None = None

    def next(self, worker: int, remaining: int) -> int:
        """The size of the next one, for `worker`: at least a grain, at most what remains."""
        if self._scheme is None:
            self._scheme = self._make(remaining)
        self._count += 1
        return self._scheme.next_size(worker, remaining)

    def _make(self, remaining: int) -> Scheme:
        """The scheme, brought to where it was."""
        text, total, workers, weights, grain = self._loop
        scheme = parse_scheme(text).make(total, workers, grain=grain, weights=weights)
        for _ in range(self._count):
            scheme.next_size(0, remaining)
        return scheme

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_scheme": None}
