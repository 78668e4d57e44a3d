# SPDX-License-Identifier: Apache-2.0
"""One exchange of a step: what is said in its header, and what follows from what all have said."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gangline.spec.errors import ExchangeError, MismatchError
from gangline.worker.checks.gradient_checks import check_sizes
from gangline.worker.checks.rates import check_rates, rates_checksum
from gangline.worker.gradients.agreement import (
    BatchSection,
    CheckSection,
    HoldSection,
    Statement,
)

if TYPE_CHECKING:
    from gangline.worker.checks.reduction import ReductionCheck
    from gangline.worker.gradients.agreement import Agreed, PassSection
    from gangline.worker.loop.gear import Gear
    from gangline.worker.loop.recovery import Recovery
    from gangline.worker.loop.windows import PulledWindows
    from gangline.worker.samples.handout import Handout


class StepExchange:
    """Exchanges what backward passes have left in the units."""

    def __init__(
        self,
        gear: Gear,
        recovery: Recovery,
        windows: PulledWindows,
        *,
        reduction: ReductionCheck | None,
    ) -> None:
        self._gear = gear
        self._recovery = recovery
        self._windows = windows
        self._reduction = reduction
        self._scrutiny = gear.scrutiny
        self.agreed: Agreed | None = None
        """What the members have agreed on last."""

    def make(self, handout: Handout) -> None:
        """A pass is over: exchanges it, and takes up what was agreed on; a failure voids the batch."""
        gear = self._gear
        session, view = gear.session, gear.views.at(handout.step)
        gear.faults.reach("exchange", handout.step)
        if session.group.size > 1:
            gear.late_sizes.settle()  # what is usual is part of what is said
        try:
            share = None if handout.pool is None else handout.share
            agreed = gear.gradients.exchange(partial(self._state, handout), share=share)
            self._windows.check_parts(handout, agreed)
            check_sizes(agreed, self._scrutiny, session, view)
        except (ExchangeError, MismatchError) as error:
            self._recovery.lose(error)
            return
        gear.clock.exchanged()
        self.agreed = agreed
        if gear.gradients.unread_size is not None:
            gear.late_sizes.note(gear.gradients.unread_size, step=handout.step)
        if self._reduction is not None and session.group.rank == 0:
            self._reduction.note(agreed, handout, view)
        check_rates(agreed)
        adoption = gear.views.agree(agreed)
        if adoption is not None and session.group.rank == 0:
            self._recovery.record_view(adoption)

    def lose(self, error: ExchangeError) -> None:
        """What should have become of the exchanged gradient has failed: the batch counts nothing."""
        self._recovery.lose(error)

    def _state(self, handout: Handout, made: PassSection) -> Statement:
        """What this worker says in the header of an exchange, by all who have a say."""
        prepared, client = self._gear.prepared, self._gear.session.client
        is_alone = self._gear.session.group.size == 1
        micro = handout.micro if handout.pool is None else 0  # nobody has as many parts as another
        return Statement(
            batch=BatchSection(handout.view, handout.epoch, handout.step, micro),
            made=made,
            views=self._gear.views.section,
            checks=CheckSection(
                # A rate may be a tensor on a device, which would have to be waited for.
                rates=0 if is_alone else rates_checksum(prepared.optimizers),
                usual=self._scrutiny.usual,
                evicts=int(prepared.evicts_wrong),
            ),
            rounds=self._gear.mode.strategy.section,
            holds=HoldSection(held=0 if client is None else client.held),
        )

    def make_local(self, handout: Handout) -> None:
        """Exchanges what backward passes have added up locally."""
        gradients = self._gear.gradients
        gradients.begin()
        self._gear.batches.count_pass()
        if gradients.finish_local(is_forced=True):
            self.make(handout)
