# SPDX-License-Identifier: Apache-2.0
"""Every scheme is asked through one of these, so that its chunks are whole, and within their limits."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from gangline.scheduling.schemes.formulas import round_up
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gangline.scheduling.chunks import Loop, Scheme
    from gangline.scheduling.schemes.formulas import Formula


class ByFormula:
    """A scheme that only counts its chunks."""

    def __init__(self, formula: Formula) -> None:
        self._formula = formula
        self._count = 0

    def next_size(self, worker: int, remaining: int) -> int:
        """The same for whoever asks."""
        size = self._formula(self._count, remaining)
        self._count += 1
        return round_up(size)

    def finished(self, worker: int, size: int, seconds: float, overhead_s: float = 0.0) -> None:
        """Nothing is learnt."""


class Bounded:
    """Another scheme, whose chunks are at least a grain and at most what remains."""

    def __init__(self, scheme: Scheme, loop: Loop, *, name: str) -> None:
        self._scheme = scheme
        self._grain = loop.grain
        self._name = name

    def next_size(self, worker: int, remaining: int) -> int:
        """0 when nothing remains."""
        if remaining <= 0:
            return 0
        size = self._scheme.next_size(worker, remaining)
        if not isinstance(size, int):
            raise UsageError(
                f"scheme {self._name}: next_size gave {size!r}, and must give a whole number (int)"
            )
        return min(max(size, self._grain), remaining)

    def finished(self, worker: int, size: int, seconds: float, overhead_s: float = 0.0) -> None:
        """Goes to the scheme."""
        self._scheme.finished(worker, size, seconds, overhead_s)


class Guarded:
    """A user's own scheme, whose errors are told with its name."""

    def __init__(self, maker: Callable[..., Scheme], loop: Loop, name: str, **given: float) -> None:
        self._name = name
        self._total = loop.total
        with self._told():
            self._scheme = maker(loop, **given)

    def next_size(self, worker: int, remaining: int) -> int:
        """As the scheme says."""
        with self._told():
            return self._scheme.next_size(worker, remaining)

    def finished(self, worker: int, size: int, seconds: float, overhead_s: float = 0.0) -> None:
        """Goes to the scheme."""
        with self._told():
            self._scheme.finished(worker, size, seconds, overhead_s)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise UsageError(
                f"scheme {self._name}: {type(error).__name__} on a loop of {self._total} items: {error}"
            ) from error
