# SPDX-License-Identifier: Apache-2.0
"""Whether a codec pays in a group: its first passes are exchanged with it and without, by turns.

All members make the same exchanges in the same order, so each knows which turn it is. An exchange takes
as long as for the member that came last to it: the others have waited. After the last turn the members
tell each other what they have timed, and come to the same verdict.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from gangline.collectives.protocol import Group

TURNS = (True, False, True, False, True)
"""Whether a pass is compressed. The first one pays for memory that the next ones find ready."""
MARGIN = 0.1
"""By what part it must be faster: something is left out."""
_MICROSECONDS = 1e6
_MOST = 1000
"""So many exchanges of a pass are timed: members tell each other of all of them at once."""


class Verdict(NamedTuple):
    """What came of it."""

    group: str
    compression: str
    with_s: float
    """What the exchanges of one pass have taken."""
    without_s: float

    @property
    def pays(self) -> bool:
        """Whether the codec is used from here on."""
        return self.with_s < (1 - MARGIN) * self.without_s

    def __str__(self) -> str:
        end = "is used" if self.pays else "is not worth what it leaves out, and is not used"
        return (
            f"group {self.group} exchanges in {self.with_s:.3g} s per step with {self.compression}, "
            f"and in {self.without_s:.3g} s without: {self.compression} {end}"
        )


class Trial:
    """One member's part in it."""

    def __init__(
        self, group: str, compression: str, *, now: Callable[[], float] = time.perf_counter
    ) -> None:
        """The names are for people."""
        self._names = group, compression
        self._now = now
        self._first: Hashable | None = None
        self._num_passes = 0
        self._num_timed = 0
        """Of the present pass."""
        self._timed: list[tuple[int, Hashable, int]] = []
        """Of each exchange: the pass, the tensor, and microseconds."""
        self.verdict: Verdict | None = None

    @contextmanager
    def exchange(self, group: Group, key: Hashable) -> Iterator[bool]:
        """A tensor of the gradient is exchanged inside: compressed, or not, as this says."""
        if self.verdict is None and (self._first is None or key == self._first):
            self._first = key
            self._begin_pass(group)
        if self.verdict is not None:
            yield self.verdict.pays
            return
        number, start_s = self._num_passes - 1, self._now()
        yield TURNS[number]
        taken_s = self._now() - start_s
        if self._num_timed < _MOST:
            self._num_timed += 1
            self._timed.append((number, key, round(taken_s * _MICROSECONDS)))

    def _begin_pass(self, group: Group) -> None:
        """The first tensor comes, or comes again: as often as there are turns, and once more."""
        if self._num_passes < len(TURNS):
            self._num_passes += 1
            self._num_timed = 0
            return
        # The greatest of their negatives is the least.
        least = -np.array([taken for *_, taken in self._timed], dtype=np.int64)
        group.all_reduce(torch.zeros(1), least)
        best: dict[bool, dict[Hashable, int]] = {True: {}, False: {}}
        for (number, key, _), taken in zip(self._timed, (-least).tolist(), strict=True):
            if number > 0:
                known = best[TURNS[number]]
                known[key] = min(taken, known.get(key, taken))
        both = best[True].keys() & best[False].keys()  # passes need not be of the same tensors
        seconds = (sum(best[turn][key] for key in both) / _MICROSECONDS for turn in (True, False))
        self.verdict = Verdict(*self._names, *seconds)
        self._timed.clear()
