# SPDX-License-Identifier: Apache-2.0
"""What a new cut costs, and when it is worth that.

The first step with another number of samples may take several times as long as the following ones: a
GPU's libraries choose their kernels anew for every layer, memory is laid out anew. For a convolutional
network that was 150 ms where a step takes 40. A cut that makes steps shorter by one of these
milliseconds pays for itself after 150 steps, if nothing changes until then.

So a better cut is put off until the steps that go without it have lost as much as making it costs.
Then whatever happens next, at most twice as much is lost as was unavoidable.
"""

from __future__ import annotations

from statistics import median

import msgspec

LAST = 3
"""How many new cuts the price is taken from."""
ENOUGH = 2
"""One cut alone may have met a pause of the machine."""


class RecutPrice(msgspec.Struct, frozen=True, kw_only=True):
    """What the last cuts cost, and what has been lost since by not making another one."""

    view: int = -1
    """The view that was cut anew, while its first step is not measured; -1: there is none."""
    excesses_s: tuple[float, ...] = ()
    """How much longer than predicted the first steps after the last cuts were."""
    lost_s: float = 0.0

    @property
    def price_s(self) -> float:
        """What a new cut costs; 0 as long as few were made."""
        return median(self.excesses_s) if len(self.excesses_s) >= ENOUGH else 0.0

    @property
    def is_paid(self) -> bool:
        """Whether a new cut costs no more than going without it has."""
        return self.lost_s >= self.price_s

    def cut_anew(self, view: int) -> RecutPrice:
        """This view has the new cut."""
        return msgspec.structs.replace(self, view=view, lost_s=0.0)

    def lost(self, seconds: float) -> RecutPrice:
        """A step was longer than it would be with a better cut."""
        return msgspec.structs.replace(self, lost_s=self.lost_s + seconds)

    def measured(self, view: int, *, step_s: float, predicted_s: float) -> RecutPrice:
        """A step of this view took so long. What is within a step's length is noise, not a price."""
        if view != self.view:
            return self
        excess_s = step_s - predicted_s
        excesses_s = (*self.excesses_s, excess_s if excess_s > predicted_s else 0.0)[-LAST:]
        return msgspec.structs.replace(self, view=-1, excesses_s=excesses_s)
