# SPDX-License-Identifier: Apache-2.0
"""From epoch to epoch: where one begins, where the loop leaves it, and where it is over for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gangline.worker.checks.latecomers import OwnTensors
from gangline.worker.checks.replicas import Replicas
from gangline.worker.sync.strategy import GroupLost, KeptAt
from gangline.worker.telling.reports import tell_epoch, tell_links, tell_pacing
from gangline.worker.together.alike import meet_in

if TYPE_CHECKING:
    from concurrent.futures import Future

    from gangline.collectives import Group
    from gangline.worker.loop.batches import BatchWalk
    from gangline.worker.loop.calls import CollectiveCalls
    from gangline.worker.loop.gear import Gear
    from gangline.worker.loop.keeping import Keeping
    from gangline.worker.loop.progress import Progress
    from gangline.worker.loop.recovery import Recovery
    from gangline.worker.samples.handout import Handout

_END = "the end of an epoch"


class EpochWalk:
    """What the prepared loader tells of the loop, as it goes through the epochs."""

    def __init__(
        self,
        gear: Gear,
        progress: Progress,
        recovery: Recovery,
        calls: CollectiveCalls,
        walk: BatchWalk,
        keeping: Keeping,
    ) -> None:
        self._gear = gear
        self._progress = progress
        self._recovery = recovery
        self._calls = calls
        self._walk = walk
        self._keeping = keeping
        self._batches = gear.batches
        self._own_tensors = OwnTensors(gear.prepared.models)
        self._replicas = Replicas(gear.prepared.models)
        self._first_step = 0
        """The step with which the loop began the present epoch."""
        walk.cross_epoch = self._cross
        calls.before_call = self._settle_computed

    @property
    def is_past(self) -> bool:
        """Whether the loop is in an epoch that the job has left behind."""
        return self._progress.is_past

    # --- a batch ---------------------------------------------------------------------------------

    def hand_out(self, handout: Handout, weight: float | Future[float], batch: Any) -> None:
        """The loop gets a batch."""
        self._walk.hand_out(handout, weight, batch)

    @property
    def has_uncomputed(self) -> bool:
        """Whether the loop has fetched a batch of which it has made no pass yet."""
        present = self._batches.present
        return bool(self._batches.ahead) or (present is not None and not present.is_worked)

    def fill(self, handout: Handout, batch: Any) -> None:
        """A loop that fetches ahead gets a batch behind the last one: it counts nothing."""
        self._walk.fill(handout, batch)

    def finish_batch(self) -> bool:
        """The loop came back for more. False where the rest of the epoch must be cut anew."""
        return self._walk.finish()

    def total_weight(self, own: float) -> Future[float]:
        """How much all members' batches count together."""

        def add(group: Group) -> float:
            total = torch.tensor([own], dtype=torch.float64)
            group.all_reduce(total)
            return float(total)

        return self._gear.session.communicator.submit(add)

    # --- the beginning ---------------------------------------------------------------------------

    def begin_epoch(self) -> bool:
        """The loop asks for an epoch; False where the job has left that one behind."""
        progress = self._progress
        # A loop that fetches ahead has still to compute it. It counts nothing.
        holds_void = self._batches.holds_void
        if not holds_void and not self._is_ahead():
            self.settle()
        if self._gear.departure.has_left:
            return False
        epoch, progress.loop_epoch = progress.loop_epoch, progress.loop_epoch + 1
        self._gear.clock.lap()
        self._batches.is_exhausted = False
        if not (holds_void or self._batches.is_empty):
            return True  # the end of the epoch before is still to be computed
        progress.must_cut = False
        if epoch > progress.position.epoch and not self.take_rest():
            progress.move(epoch=epoch, start=0)
        # A batch that the loop has left before its step has the number of the one that comes now.
        self._recovery.forget_attempt()
        self._enter(epoch)
        if holds_void:
            self._recovery.void()
        return not progress.is_past

    def _enter(self, epoch: int) -> None:
        progress, snapshot = self._progress, self._gear.snapshot
        progress.num_between = 0
        self._first_step = progress.position.step
        was_past = progress.is_past or progress.overtaken[0] > progress.position.handed_out
        progress.is_past = epoch < progress.position.epoch
        progress.is_void = progress.is_told = False
        progress.is_in_epoch = not progress.is_past
        progress.arrive()
        self._hand_down()
        if was_past and (progress.is_past or progress.position.start):
            snapshot.restore()  # what the loop did at the end of past epochs was done already
        elif not progress.is_past:
            snapshot.by_hand.note()
            snapshot.by_hand.note_states()
            snapshot.take()  # with what the loop did between the epochs

    def _hand_down(self) -> None:
        """The spares get the state with which an epoch begins, from the first member."""
        gear, progress = self._gear, self._progress
        is_beginning = progress.position.epoch > 0 and progress.position.start == 0
        is_together = gear.views.newest.whole is None and not gear.membership.is_broken
        if is_beginning and is_together and not progress.is_past and gear.rank_now() == 0:
            gear.giver.give(progress.position, gear.membership.known_results)

    def _is_ahead(self) -> bool:
        """Whether the loop goes on to the next epoch before it has computed the end of this one."""
        newest = self._batches.newest
        if newest is None or newest.is_worked or newest.is_void:
            return False
        if not self._batches.is_exhausted or self._is_untouched:
            return False
        self._gear.mode.strategy.check_ahead()
        return True

    @property
    def _is_untouched(self) -> bool:
        """Whether the loop has only looked at batches of this epoch, if it has fetched any."""
        present = self._batches.present
        is_used = present is None or present.is_worked or present.calls > 0
        is_used = is_used or self._batches.is_in_window
        return not is_used and self._progress.position.step == self._first_step

    def _cross(self) -> None:
        """The loop had fetched batches of the next epoch before it computed the last of this one."""
        progress, gear, first = self._progress, self._gear, self._batches.ahead[0]
        truths = gear.membership.num_truths
        # Where somebody was lost in the last step, that is made again first.
        is_done = progress.position.step >= first.handout.step and not gear.departure.has_left
        is_closed = is_done and self._close()
        if is_closed:
            self._enter(progress.position.epoch)
        progress.must_cut = not is_closed or first.is_void or gear.membership.num_truths != truths
        if progress.must_cut:
            self._batches.void()

    # --- leaving it ------------------------------------------------------------------------------

    def settle(self) -> None:
        """The loop is done with what it has fetched: so is its last step, and the epoch if it is."""
        progress, batches, newest = self._progress, self._batches, self._batches.newest
        if self._is_untouched and not batches.is_exhausted:
            batches.clear()
            progress.loop_epoch = min(progress.loop_epoch, progress.position.epoch)
            self._gear.membership.results.pop(("order", progress.position.epoch), None)
        while batches.present is not None and (batches.present.is_worked or batches.is_exhausted):
            self._walk.pass_over()
        if batches.is_in_window:
            self._gear.gradients.leave_window()
        batches.clear()
        if batches.is_exhausted and progress.is_in_epoch and not self._gear.departure.has_left:
            is_done = newest is None or progress.position.start >= newest.handout.window_stop
            progress.has_rest = not (is_done and self._close())
        batches.is_exhausted = False

    def _settle_computed(self) -> None:
        """The last batch was fetched before it was computed, and now it is."""
        batches = self._batches
        if batches.is_exhausted and batches.is_complete and not batches.ahead:
            self.settle()

    def take_rest(self) -> bool:
        """Whether there is more to do of the epoch that the loop has left; said once."""
        has_rest, self._progress.has_rest = self._progress.has_rest, False
        return has_rest

    # --- the end ---------------------------------------------------------------------------------

    def end_epoch(self) -> bool:
        """The loader has cut all there is. False where there is more to do."""
        progress, batches = self._progress, self._batches
        self._walk.exchange_kept()
        batches.is_exhausted = True
        if not batches.is_empty and progress.is_cut_off:
            batches.void()
            batches.is_exhausted = progress.is_cut_off = False
            return False
        holds_void = batches.holds_void
        if not (batches.is_empty or holds_void):  # the loop computes them first
            return True
        progress.is_void = progress.is_void and not holds_void
        with batches.aside():  # what it holds counts nothing, and the others do not have it
            is_closed = self._close()
        progress.must_cut = False  # nothing is cut ahead
        if not is_closed:
            batches.is_exhausted = False  # there are more to come
            return False
        is_over = progress.is_past or progress.position.epoch >= progress.loop_epoch
        if is_over or self._gear.departure.has_left:
            return True
        batches.is_exhausted = False  # this was the rest of an epoch before
        self._enter(progress.position.epoch)
        return False

    def _close(self) -> bool:
        """All batches are done, here; False where somebody was lost and there is more to do."""
        gear, progress = self._gear, self._progress
        epoch, samples = progress.position.epoch, progress.position.start
        progress.random.go_on()
        gear.gradients.stop()
        if progress.is_cut_off:
            return self._cut_again()
        gear.faults.reach("end", progress.position.step)
        is_exhausted = self._batches.is_exhausted
        self._batches.is_exhausted = False  # where this fails, nobody tries again
        self._meet_members()
        is_complete = gear.departure.has_left or progress.is_void or self._meet_others()
        self._batches.is_exhausted = is_exhausted
        if gear.departure.has_left:
            return True
        if progress.is_void:
            self._recovery.restart()
            if progress.position.epoch == epoch:
                return False
        elif not is_complete:
            return False
        self._count(epoch, samples)
        return True

    def _cut_again(self) -> bool:
        """The group broke before the end of the epoch could be cut: True where this worker has left."""
        if self._recovery.needs_group:
            self._recovery.recover()
        if not self._gear.departure.has_left:
            self._recovery.restart()
        return self._gear.departure.has_left

    def _meet_members(self) -> None:
        """All members of the group have come to the end, with models that are the same."""
        gear, own = self._gear, self._own_tensors
        epoch = self._progress.position.epoch
        meet = meet_in(
            _END,
            worker=gear.session.place.worker,
            checksums=own.checksums,
            figures=self._replicas.figures,
        )
        met = self._calls.make(meet, what=_END, before=own.look)
        if met["figures"]:
            self._replicas.check(met["figures"], size=met["size"], epoch=epoch)
        own.warn_of(met["differing"], is_main=gear.rank_now() == 0)

    def _meet_others(self) -> bool:
        """Waits for other groups, where there are any; False where there is more to do."""
        gear, progress = self._gear, self._progress
        while not (gear.departure.has_left or progress.is_void):
            try:
                end = gear.mode.strategy.end_epoch(progress.position)
            except GroupLost:
                self._recovery.recover()
                continue
            if end is None:
                return True
            # Groups have made different numbers of steps and of calls: from here on they count alike.
            progress.move(step=end.step, handed_out=end.step - 1, calls=0)
            gear.membership.forget_calls()
            if end.has_moved:
                progress.move(start=0)
                self._recovery.find_group()
            gear.snapshot.take()
            return end.is_complete
        return True

    def _count(self, epoch: int, samples: int) -> None:
        """The epoch is over for all, and this group has used so many samples of it."""
        session, progress = self._gear.session, self._progress
        number = self._gear.mode.strategy.number
        self._gear.late_sizes.settle()
        tell_epoch(session, epoch, step=progress.position.step, samples=samples, team=number)
        progress.is_in_epoch = False
        if progress.position.epoch == epoch:
            progress.move(epoch=epoch + 1, start=0)
        self._keeping.offer(KeptAt.EPOCH)
        if self._gear.pacer is not None:
            tell_pacing(session, self._gear.pacer)
        tell_links(session)
