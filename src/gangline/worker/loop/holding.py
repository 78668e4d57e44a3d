# SPDX-License-Identifier: Apache-2.0
"""Standing still between two steps, because an operator wants it.

Members are told at different times. So each says in the header of the exchange which order it knows of;
the newest one holds for all, and all stand still after the same step, with nobody inside an exchange.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.spec.errors import ExchangeAborted
from gangline.worker.sync.strategy import KeptAt

if TYPE_CHECKING:
    from gangline.worker.loop.exchange import StepExchange
    from gangline.worker.loop.gear import Gear
    from gangline.worker.loop.keeping import Keeping
    from gangline.worker.loop.progress import Progress

LOOK_S = 0.25
"""How often who stands still looks about, though it is told nothing."""


class Holding:
    """Waits where the members have agreed to."""

    def __init__(
        self, gear: Gear, progress: Progress, exchange: StepExchange, keeping: Keeping
    ) -> None:
        self._gear = gear
        self._progress = progress
        self._exchange = exchange
        self._keeping = keeping
        self._passed = 0
        """The newest order after which this worker has gone on."""

    def stand_still(self) -> bool:
        """Waits until the job goes on; True where the group was lost meanwhile, to be found anew."""
        client, agreed = self._gear.session.client, self._exchange.agreed
        number = 0 if agreed is None else agreed.most.holds.held
        if client is None or number % 2 == 0 or number <= self._passed:
            return False
        membership = self._gear.membership
        while client.wait_held(number, LOOK_S):
            self._keeping.offer(KeptAt.STEP)
            if client.newest_recovery > membership.group or client.has_moved:
                lost = ExchangeAborted("the group was lost while the job stood still")
                membership.fail(lost, self._progress.position)
                return True
        self._passed = number
        return False
