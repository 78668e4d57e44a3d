# SPDX-License-Identifier: Apache-2.0
"""`auto` while a job runs: whether it should be in step or apart, by what is measured.

In step, what the members make is compared with what all workers would make apart. Apart, the leaders'
exchange is what one in step would take: where it is a small part of computing, being apart gains
little. Changing costs a meeting of all workers, so nothing is changed for a while after a change.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from gangline.spec.sync import FLEXIBLE, IN_STEP, Sync

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangline.control.sync.pace import Pace

PART_GAIN = 1.25
"""Workers part where they make so many times as much apart: exactness is worth something, too."""
QUICK = 0.1
"""They are in step again where an exchange takes less than this part of a step's computing."""
STAY_S = 20.0
"""So long nothing is changed after a change."""
_STEPS = 24
_ROUNDS = 9


class Advice(NamedTuple):
    """How to hold the workers together from here on."""

    sync: Sync
    reason: str
    numbers: Mapping[str, float] = MappingProxyType({})
    """Those behind the reason, as a decision has them."""


class SyncWatch:
    """What computing and exchanging took lately, while the workers are apart."""

    def __init__(self, *, levels: int = 1) -> None:
        self._changed_s: float | None = None
        self._levels = levels
        self._computing: deque[float] = deque(maxlen=_STEPS)
        self._rounds: deque[float] = deque(maxlen=_ROUNDS)

    def changed(self, now: float) -> None:
        """The workers are held together in another way: everything is measured anew."""
        self._changed_s = now
        self._computing.clear()
        self._rounds.clear()

    def see_step(self, compute_s: float) -> None:
        """A worker made a step."""
        self._computing.append(compute_s)

    def see_round(self, exchange_s: float) -> None:
        """Teams were merged, and their leaders exchanged for so long."""
        self._rounds.append(exchange_s)

    def advise(self, now: float, *, pace: Pace | None, is_apart: bool) -> Advice | None:
        """Another way of holding the workers together, if it is time for one.

        `pace` is what they make in step, where they are, and it is known.
        """
        if self._changed_s is not None and now - self._changed_s < STAY_S:
            return None
        if is_apart:
            return self._come_together()
        if pace is None or pace.gain < PART_GAIN:
            return None
        return Advice(Sync(kind=FLEXIBLE, levels=self._levels), f"{pace}: they part", pace.numbers)

    def _come_together(self) -> Advice | None:
        if len(self._rounds) < _ROUNDS or len(self._computing) < _STEPS:
            return None
        exchange_s, compute_s = median(self._rounds), median(self._computing)
        if exchange_s >= QUICK * compute_s:
            return None
        reason = (
            f"the leaders exchange in {exchange_s:.3g} s, less than {QUICK:.0%} of what a step "
            f"computes, {compute_s:.3g} s: all workers are in step again"
        )
        return Advice(IN_STEP, reason, {"exchange_s": exchange_s, "compute_s": compute_s})
