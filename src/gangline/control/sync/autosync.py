# SPDX-License-Identifier: Apache-2.0
"""`auto` while a job runs: whether it should be in step or apart, from what exchanges take by now.

In step, a worker's exchange contains waiting for the others; that of the worker that waits least is the
exchange itself. Apart, the leaders' exchange is what one in step would take. Changing costs a meeting
of all workers, so nothing is changed for a while after a change, nor for a small difference.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from gangline.planning.structure.relaxing import SLOW_EXCHANGE_S
from gangline.spec.sync import FLEXIBLE, IN_STEP, Sync

if TYPE_CHECKING:
    from collections.abc import Collection

QUICK = 0.5
"""They are in step again where it takes less than this part of that."""
STAY_S = 20.0
"""So long nothing is changed after a change."""
_STEPS = 24
_ROUNDS = 9


class Advice(NamedTuple):
    """How to hold the workers together from here on."""

    sync: Sync
    reason: str


class SyncWatch:
    """What exchanges took lately."""

    def __init__(self, now: float, *, levels: int = 1) -> None:
        self._since_s = now
        self._levels = levels
        self._exchanges: dict[int, deque[float]] = {}
        self._computing: dict[int, deque[float]] = {}
        self._rounds: deque[float] = deque(maxlen=_ROUNDS)

    def changed(self, now: float) -> None:
        """The workers are held together in another way: everything is measured anew."""
        self._since_s = now
        self._exchanges.clear()
        self._computing.clear()
        self._rounds.clear()

    def see_step(self, worker: int, *, exchange_s: float, compute_s: float) -> None:
        """A worker made a step."""
        self._exchanges.setdefault(worker, deque(maxlen=_STEPS)).append(exchange_s)
        self._computing.setdefault(worker, deque(maxlen=_STEPS)).append(compute_s)

    def see_round(self, exchange_s: float) -> None:
        """Teams were merged, and their leaders exchanged for so long."""
        self._rounds.append(exchange_s)

    def advise(self, now: float, *, members: Collection[int], is_apart: bool) -> Advice | None:
        """Another way of holding these workers together, if it is time for one."""
        if now - self._since_s < STAY_S:
            return None
        return self._come_together() if is_apart else self._part(members)

    def _part(self, members: Collection[int]) -> Advice | None:
        if not members or any(len(self._exchanges.get(one, ())) < _STEPS for one in members):
            return None
        exchange_s = min(median(self._exchanges[one]) for one in members)
        compute_s = max(median(self._computing[one]) for one in members)
        if exchange_s <= max(SLOW_EXCHANGE_S, compute_s):
            return None
        reason = (
            f"an exchange takes {exchange_s:.3g} s, more than {SLOW_EXCHANGE_S:g} s and than "
            f"computing, {compute_s:.3g} s: groups train at their own pace"
        )
        return Advice(Sync(kind=FLEXIBLE, levels=self._levels), reason)

    def _come_together(self) -> Advice | None:
        if len(self._rounds) < _ROUNDS:
            return None
        exchange_s = median(self._rounds)
        if exchange_s >= QUICK * SLOW_EXCHANGE_S:
            return None
        reason = (
            f"the leaders exchange in {exchange_s:.3g} s, less than {QUICK * SLOW_EXCHANGE_S:g} s: "
            "all workers are in step again"
        )
        return Advice(IN_STEP, reason)
