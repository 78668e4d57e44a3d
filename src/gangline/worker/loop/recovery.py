# SPDX-License-Identifier: Apache-2.0
"""Losing and finding each other: what the loop does when its group is lost, left, or another one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gangline.spec.errors import ExchangeAborted
from gangline.spec.position import NOWHERE, Position
from gangline.worker.session import now
from gangline.worker.sync.strategy import GroupLost
from gangline.worker.telling.reports import tell_view

if TYPE_CHECKING:
    from gangline.spec.errors import ExchangeError, MismatchError
    from gangline.spec.view import View
    from gangline.worker.checkpoint.resuming import Start
    from gangline.worker.groups.regroup import Truth
    from gangline.worker.groups.views import Adoption
    from gangline.worker.loop.gear import Gear
    from gangline.worker.loop.progress import Progress
    from gangline.worker.normalisation.batch_statistics import ShareWatch


_log = logging.getLogger("gangline.worker")


class Recovery:
    """Voids what was done for a group that is no more, and goes on as the next one does."""

    def __init__(self, gear: Gear, progress: Progress, *, shares: ShareWatch | None) -> None:
        self._gear = gear
        self._progress = progress
        self._membership = gear.membership
        self._gradients = gear.gradients
        self._snapshot = gear.snapshot
        self._views = gear.views
        self._shares = shares

    # --- an attempt ------------------------------------------------------------------------------

    def void(self) -> None:
        """The attempt at this batch counts nothing; it is handed out again."""
        self._progress.is_void = True
        self._gradients.void()

    def lose(self, error: ExchangeError | MismatchError) -> None:
        """An exchange of a step failed: the attempt is void. Raises it where nobody can mend it."""
        self._membership.fail(error, self._progress.position)
        self.void()

    def forget_attempt(self) -> None:
        """All do this step anew, if nothing of it was applied, and with it the calls made in it."""
        position = self._progress.position
        if position.phase == 0:
            step = position.step
            self._membership.forget(lambda key: isinstance(key[0], int) and key[0] == step)

    def restart(self) -> None:
        """The loop goes on from the job's position, as if it had just come there."""
        progress = self._progress
        progress.is_void = progress.is_cut_off = progress.is_told = False
        progress.is_past = progress.loop_epoch <= progress.position.epoch
        progress.is_in_epoch = progress.is_in_epoch and not progress.is_past
        self.forget_attempt()
        progress.arrive()
        self._snapshot.restore()

    # --- a group ---------------------------------------------------------------------------------

    @property
    def needs_group(self) -> bool:
        """Whether the group is lost, and this worker was not told where to go on."""
        return self._membership.is_broken and not self._progress.is_told

    def recover(self) -> None:
        """The group is lost: finds another one, or is told as a spare where the others are."""
        if self._gear.handout is not None:
            self.void()  # it was cut for the lost group; passes that were applied are not done again
        elif self._gear.pulls is not None and self._gear.batches.is_in_window:
            self._gradients.leave_window()  # between two parts: what came in is of the lost group
            self._gear.batches.is_in_window = False
        self._gear.faults.reach("regroup", self._progress.position.step)
        self.find_group()

    def find_group(self) -> None:
        """Waits for a group with this worker in it, and goes on as its members do."""
        while True:
            if self._gear.mode.come_over():
                self._progress.position = Position.at_start()
            try:
                found = self._membership.recover(self._progress.position)
            except ExchangeAborted:  # it was given another group while it waited
                continue
            if found is None:
                self.leave()
                return
            self._settle_in(*found)
            if self._progress.is_spare:
                return
            try:
                self._gear.mode.strategy.resume(self._progress.position)
            except GroupLost:
                continue
            return

    def part(self) -> None:
        """The others go on without this worker: it leaves, or was put out and comes back."""
        if not self._gear.departure.is_allowed:
            put_out = ExchangeAborted("the others have gone on without this worker")
            self._membership.fail(put_out, self._progress.position)
            self.recover()
        else:
            self.leave()

    def leave(self) -> None:
        """From here on the loader hands out nothing, and collective calls are this worker's own."""
        if self._gear.handout is not None:
            self.void()
        self._progress.is_past = True
        self._gear.departure.leave(step=self._progress.position.step, t=now())

    def enter(self, view: View) -> None:
        """The agreed step has come from which on there is another group."""
        position = self._progress.position
        self._gear.faults.reach("regroup", position.step)
        truth = self._membership.enter(view, position)
        if truth is None:
            self.recover()
        else:
            self._settle_in(view, truth)

    def _settle_in(self, view: View | None, truth: Truth) -> None:
        """Goes on from where the others are; without a view as a spare, for itself."""
        progress, buffers = self._progress, self._gear.buffers
        own = progress.position
        progress.is_told = progress.is_spare = view is None
        progress.overtaken = truth.position[2:4] if truth.was_behind else NOWHERE
        # A batch is handed out when the step before it is done: they are in it, and this one is not.
        are_amid = truth.position.handed_out == truth.position.step > own.handed_out
        progress.joins_void = are_amid and view is not None and self._gear.handout is None
        self._gradients.reset()
        buffers.settle()
        if view is not None:
            self._views.restart(view, truth.position.step)
        progress.must_cut = True  # what was cut ahead was cut for the old group
        buffers.ahead = self._snapshot.ahead if truth.was_behind else buffers.copies()
        if truth.was_behind:
            progress.position = truth.position._replace(handed_out=own.handed_out, calls=own.calls)
        if truth.was_behind or self._gear.handout is not None:
            self.void()  # the present batch was cut for the old group, too
        if view is None:
            self._note_skipped(truth.position)
            return
        if self._gear.session.group.rank == 0:
            self.record_view(self._views.latest)
        if truth.was_behind and own.handed_out >= 0 and truth.position.step > own.step + 1:
            _log.warning(
                "gangline: worker %d was out from step %d on and goes on with step %d, as the others "
                "do. What its loop does before it is there counts nothing, also what it prints",
                self._gear.session.place.worker,
                own.step,
                truth.position.step,
            )

    def _note_skipped(self, position: Position) -> None:
        """A spare was sent the state of a later epoch than the next: its loop sees that too early."""
        first, last = self._progress.loop_epoch, position.epoch - 1
        if last >= first:
            _log.warning(
                "gangline: worker %d is a spare, and was not sent the state after epoch %d: epochs are "
                "shorter than it takes. What its loop finds after that epoch is of epoch %d",
                self._gear.session.place.worker,
                first - 1,
                last,
            )

    def record_view(self, adoption: Adoption) -> None:
        """Writes down from which step on a view holds, and why."""
        tell_view(self._gear.session, adoption)
        if self._shares is not None:
            self._shares.look(adoption.view)

    # --- the beginning ---------------------------------------------------------------------------

    def resume(self, start: Start) -> None:
        """Begins where a checkpoint was taken. The state is loaded already."""
        self._progress.position = start.position
        self._progress.random = start.random
        self._membership.results.update(start.orders)
        self._views.restart(self._views.newest, start.position.step)
        self._gradients.carried.load(start.gradients)

    def join(self, view: View, *, is_founder: bool) -> None:
        """Enters a running job: the others are ahead, and this worker becomes like them.

        Or a team that is founded, where nobody is ahead.
        """
        self.enter(view)
        self.restart()
        self._progress.is_past = self._progress.is_past and not is_founder
