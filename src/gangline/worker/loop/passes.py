# SPDX-License-Identifier: Apache-2.0
"""Backward passes: which batch each is of, and whether it is exchanged at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangline.spec.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from gangline.worker.checks.foreign import ForeignExchange
    from gangline.worker.checks.guard import LayoutGuard
    from gangline.worker.loop.batches import BatchWalk
    from gangline.worker.loop.exchange import StepExchange
    from gangline.worker.loop.gear import Gear
    from gangline.worker.loop.progress import Progress
    from gangline.worker.loop.windows import PulledWindows

_NO_BATCH = (
    "backward() was called before the prepared loader handed out a batch: gangline weighs every "
    "gradient by the batch's share. Call backward() inside the loop over the loader that prepare() "
    "returned"
)
_ALL_OVER = (
    "backward() was called when the loop was done with every batch that it has fetched: a batch is "
    "over when the loop fetches another one after a step, and at the end of the epoch. Call backward() "
    "for all losses of a batch before that"
)


class BackwardPasses:
    """Is told of every backward pass of the process."""

    def __init__(
        self,
        gear: Gear,
        progress: Progress,
        walk: BatchWalk,
        exchange: StepExchange,
        windows: PulledWindows,
        *,
        guard: LayoutGuard,
        foreign: ForeignExchange,
    ) -> None:
        self._gear = gear
        self._progress = progress
        self._walk = walk
        self._exchange = exchange
        self._windows = windows
        self._guard = guard
        self._foreign = foreign
        self._gradients = gear.gradients

    def begin_backward(self, losses: Any) -> None:
        """The outermost pass begins."""
        counts = not (self._progress.is_void or self._gear.departure.has_left)
        is_weighed = counts and not self._gear.is_passing_through
        for _ in range(self._gear.batches.find(losses, is_weighed=is_weighed)):
            self._walk.pass_over()
        if self._gear.is_passing_through:
            self._gradients.carried.begin_pass(may_fail=False)
        else:
            self._guard.check()
            self._gear.snapshot.by_hand.look()
            self._gradients.begin()
            self._windows.ask_ahead()

    def end_backward(self) -> None:
        """It is over: what it has left is counted, checked and exchanged."""
        gear = self._gear
        if gear.pacer is not None:
            gear.pacer.settle()
        if gear.probe is not None:
            gear.probe.end()
        gear.faults.drag()
        if gear.is_passing_through:
            gear.batches.count_pass()
            gear.clock.computed()
            return
        if self._gradients.has_fired:
            gear.batches.count_pass()
        self._check()
        if self._gradients.has_fired:
            self._windows.end_pass()
        must_exchange = self._gradients.finish_local()
        self._set_waits_apart()
        gear.clock.awaited(self._gradients.take_wait())
        gear.clock.computed()
        if must_exchange and gear.handout is not None:
            if not self._gradients.runs_ahead:  # else it is not known yet what was computed
                gear.weighing.tell(gear.handout, gear.clock.times)
            self._exchange.make(gear.handout)

    def _set_waits_apart(self) -> None:
        """Parameters that the forward pass had to wait for are no part of computing."""
        updater = self._gear.mode.strategy.updater
        if updater is not None:
            served_s, turn_s = updater.take_waits()
            self._gear.clock.waited(served_s, turn_s)

    def _check(self) -> None:
        """Refuses a pass that counts for no batch, or that somebody else exchanges."""
        if self._gear.handout is None and self._gradients.has_fired:
            self._gradients.fail()
            is_early = self._progress.position.handed_out < 0
            raise UsageError(_NO_BATCH if is_early else _ALL_OVER)
        try:
            self._foreign.check_pass(lambda: self._gradients.has_fired)
        except UnsupportedError:
            self._gradients.fail()
            raise

    def fail_backward(self) -> None:
        """It has raised."""
        if not self._gear.is_passing_through:
            self._gradients.fail()
