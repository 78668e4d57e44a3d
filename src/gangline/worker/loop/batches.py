# SPDX-License-Identifier: Apache-2.0
"""From batch to batch: the loop fetches some, computes them in order, and is done with each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangline.eventlog.detail import Detail
from gangline.worker.gradients.by_hand import warn_of_windows
from gangline.worker.gradients.spans import UnitSpans
from gangline.worker.loop.holding import Holding
from gangline.worker.sync.strategy import KeptAt
from gangline.worker.telling.reports import tell_codecs, tell_step, tell_units

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from gangline.worker.loop.exchange import StepExchange
    from gangline.worker.loop.gear import Gear
    from gangline.worker.loop.keeping import Keeping
    from gangline.worker.loop.progress import Progress
    from gangline.worker.loop.recovery import Recovery
    from gangline.worker.loop.windows import PulledWindows
    from gangline.worker.samples.handout import Handout


class BatchWalk:
    """Takes up the batches that the loop has fetched, and finishes the step of each."""

    def __init__(
        self,
        gear: Gear,
        progress: Progress,
        recovery: Recovery,
        exchange: StepExchange,
        keeping: Keeping,
        windows: PulledWindows,
    ) -> None:
        self._gear = gear
        self._progress = progress
        self._recovery = recovery
        self._exchange = exchange
        self._keeping = keeping
        self._windows = windows
        self._holding = Holding(gear, progress, exchange, keeping)
        self._batches = gear.batches
        self._membership = gear.membership
        client = gear.session.client
        self._is_elastic = client is not None and client.is_elastic
        self._detail = Detail()
        self._is_filling = False
        """Whether the loop gets the other parts of a window of a lost group, which count nothing."""
        self._last_two: tuple[Handout | None, Handout | None] = (None, None)
        self.cross_epoch: Callable[[], None] = lambda: None
        """Called before the first batch of the next epoch is taken up, where it was fetched ahead."""

    @property
    def sizes(self) -> tuple[int, int] | None:
        """The shares of the last two batches, where they differ though the batches are as large."""
        before, last = self._last_two
        if before is None or last is None or before.total != last.total:
            return None
        return None if before.share == last.share else (before.share, last.share)

    def hand_out(self, handout: Handout, weight: float | Future[float], batch: Any) -> None:
        """The loop gets a batch: to compute it now, or behind those that it has fetched before."""
        joins_void, self._progress.joins_void = self._progress.joins_void, False
        self._batches.add(handout, weight, batch, is_void=self._is_filling)
        self._last_two = (self._last_two[1], handout)
        self._gear.clock.handed_out()
        if self._batches.present is None:
            self._take_up()
        if joins_void:
            self._recovery.void()

    def fill(self, handout: Handout, batch: Any) -> None:
        """The loop gets a batch that counts nothing, where there are no more for it."""
        self._batches.add(handout, 0.0, batch, is_void=True)
        if self._batches.present is None:
            self._take_up()

    def _take_up(self) -> None:
        """The loop goes on to the next batch that it has fetched, if it has one."""
        progress, ahead = self._progress, self._batches.ahead
        if ahead and ahead[0].handout.epoch > progress.position.epoch:
            self.cross_epoch()
        batch = self._batches.take_up()
        if batch is None:
            return
        handout = batch.handout
        progress.is_void = False
        # The parts of a window are of one step: the calls made in them are counted on.
        calls = progress.position.calls if handout.micro else 0
        progress.move(handed_out=handout.step, calls=calls)
        self._membership.forget_behind(progress.position)
        if handout.micro == 0:
            is_detailed = self._detail.wants(handout.step, handout.view)
            self._gear.gradients.spans = UnitSpans() if is_detailed else None
        self._gear.gradients.start(
            batch.weight,
            is_update=handout.is_update,
            is_first=handout.micro == 0,
            part=handout.share / handout.total,
            num_done=progress.position.phase,
        )
        if batch.is_void:
            self._recovery.void()
        self._begin_to_compute(handout)

    def _begin_to_compute(self, handout: Handout) -> None:
        gear = self._gear
        if gear.pacer is not None:
            gear.pacer.begin(handout.share if handout.pool is None else handout.samples)
        if gear.probe is not None:
            gear.probe.begin()
        gear.faults.reach("forward", handout.step)
        gear.faults.begin()
        self._windows.begin(handout)

    def finish(self) -> bool:
        """The loop came back for more. False where the rest of the epoch must be cut anew."""
        progress, departure = self._progress, self._gear.departure
        batch, newest = self._batches.present, self._batches.newest
        if self._batches.is_over or (batch is not None and progress.is_void and batch.is_worked):
            self.exchange_kept()
            self.pass_over()
        elif batch is None:
            self._gear.clock.lap()
        elif batch.is_worked:
            if self._is_elastic:  # otherwise what a worker has added up would be lost with it
                self.exchange_kept()
            self._gear.snapshot.note()
        # A loop may count the parts of a window itself: it gets all parts of one that it has begun.
        # Who pulls parts cannot count them.
        is_amid = newest is not None and not newest.handout.is_update and not newest.handout.pool
        self._is_filling = progress.must_cut and is_amid and not departure.has_left
        if self._is_filling:
            return True
        must_cut, progress.must_cut = progress.must_cut, False
        return not (must_cut or departure.has_left)

    def pass_over(self) -> None:
        """The loop is done with the present batch, and goes on to the next that it has fetched."""
        clock = self._gear.clock
        since_s = clock.lap()
        batch = self._batches.present
        assert batch is not None
        self._windows.end_turn(batch)
        self._batches.drop()
        if batch.is_void:
            self._gear.logbook.discard(batch.handout.step)
            self._gear.snapshot.restore()
        elif batch.handout.is_update or self._progress.is_void:
            self._finish_step(batch.handout)
        if self._progress.must_cut or self._gear.departure.has_left:
            self._batches.void()
        self._take_up()
        clock.lap()
        if self._batches.present is not None:  # it was done for the batch that was fetched ahead
            clock.times.compute_s += since_s

    def exchange_kept(self) -> None:
        """The loop goes on to another batch inside of `no_sync`: what it has added up is exchanged."""
        batch = self._batches.present
        is_kept = self._gear.gradients.has_kept and batch is not None and batch.handout.is_update
        if batch is not None and is_kept and not (self._progress.is_void or batch.is_void):
            warn_of_windows()
            self._exchange.make_local(batch.handout)

    def leave_out(self) -> None:
        """The loop steps at a later batch than the present one, which it has made no pass of."""
        batches = self._batches
        while batches.present is not None and not batches.present.is_worked:
            if batches.shown is batches.present:
                return
            self.pass_over()

    def _finish_step(self, handout: Handout) -> None:
        self._count_step(handout)
        self._go_on()
        while not self._gear.departure.has_left and self._holding.stand_still():
            self._go_on()

    def _go_on(self) -> None:
        """Between two steps: finds another group where that is due, or leaves."""
        gear, progress, departure = self._gear, self._progress, self._gear.departure
        if self._recovery.needs_group and not departure.has_left:
            self._recovery.recover()
        view = gear.views.at(progress.position.step)
        if not departure.has_left and departure.is_due(view):
            if departure.is_allowed:
                self._keeping.keep_last()
            self._recovery.part()
        elif view.group != self._membership.group and not departure.has_left:
            self._recovery.enter(view)
        if not departure.has_left and (progress.is_void or progress.must_cut):
            self._recovery.restart()
            progress.must_cut = True

    def _count_step(self, handout: Handout) -> None:
        """The step is made, unless its attempt is void."""
        gear, progress, strategy = self._gear, self._progress, self._gear.mode.strategy
        times = gear.clock.take(handout.share, is_drawn=handout.usual_share is not None)
        if progress.is_void:
            gear.logbook.discard(handout.step)
            return
        progress.move(step=handout.step + 1, phase=0, start=handout.window_stop)
        strategy.after_step(self._exchange.agreed, progress.position, step_s=times.total_s)
        gear.snapshot.take()
        self._keeping.offer(KeptAt.STEP)
        tell_step(gear.session, handout, times, team=strategy.number, probe=gear.probe)
        tell_codecs(gear.session)
        tell_units(gear.session, gear.gradients.spans, step=handout.step)
        gear.logbook.commit(handout.step)
        gear.faults.reach("between", handout.step)
