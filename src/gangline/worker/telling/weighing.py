# SPDX-License-Identifier: Apache-2.0
"""What a worker says of its first steps before they are exchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.protocol.messages import Measured, Weighed

if TYPE_CHECKING:
    from gangline.worker.samples.handout import Handout
    from gangline.worker.session import Session
    from gangline.worker.telling.stepclock import StepTimes

NUM_WEIGHED = 2
"""The first step pays for allocations and kernels that the next one finds ready."""


class Weighing:
    """Where a probe says how long exchanging will take: tells that, and what was computed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._num_left = NUM_WEIGHED

    def tell(self, handout: Handout, times: StepTimes) -> None:
        """A pass is over, and is about to be exchanged."""
        session = self._session
        if not (session.exchange_s and self._num_left and session.client is not None):
            return
        self._num_left -= 1
        samples, compute_s = handout.told(times.compute_s)
        session.client.send(
            Weighed(
                expected=Measured(
                    step=handout.step,
                    view=handout.view,
                    samples=samples,
                    compute_s=compute_s,
                    exchange_s=session.exchange_s,
                )
            )
        )
