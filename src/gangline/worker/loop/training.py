# SPDX-License-Identifier: Apache-2.0
"""What `prepare` sets up: the parts that follow the user's loop, and what may be asked of them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from gangline.spec.errors import GanglineError, LeftBehindError
from gangline.spec.position import NO_EPOCH
from gangline.worker.checks.foreign import ForeignExchange
from gangline.worker.checks.guard import LayoutGuard
from gangline.worker.checks.hooks import GradientHooks
from gangline.worker.gradients.by_hand import check_windows
from gangline.worker.loop.batches import BatchWalk
from gangline.worker.loop.calls import CollectiveCalls
from gangline.worker.loop.cutting import Cutting
from gangline.worker.loop.epochs import EpochWalk
from gangline.worker.loop.exchange import StepExchange
from gangline.worker.loop.gear import equip
from gangline.worker.loop.keeping import Keeping
from gangline.worker.loop.passes import BackwardPasses
from gangline.worker.loop.progress import Progress
from gangline.worker.loop.recovery import Recovery
from gangline.worker.loop.statistics import PresentPass
from gangline.worker.loop.steps import OptimizerSteps
from gangline.worker.loop.windows import PulledWindows
from gangline.worker.normalisation.sync_batchnorm import SyncedBatchNorms
from gangline.worker.samples import sample_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangline.spec.position import Position
    from gangline.worker.gradients.layout import Layout
    from gangline.worker.groups.refounding import Refounding
    from gangline.worker.groups.views import ViewSchedule
    from gangline.worker.instruments import Instruments
    from gangline.worker.prepare.handshake import Introduction
    from gangline.worker.prepare.prepared import Prepared
    from gangline.worker.samples.handout import Handout
    from gangline.worker.samples.sample_state import SampleState
    from gangline.worker.session import Session

END_WAIT_S = 10.0
"""How long a worker whose script is over waits at most for others that come back."""


class Training:
    """Puts the parts of the loop together, and answers what the script asks between their turns."""

    def __init__(
        self,
        session: Session,
        prepared: Prepared,
        layout: Layout,
        *,
        introduction: Introduction,
        views: ViewSchedule,
        instruments: Instruments,
        refounding: Refounding,
    ) -> None:
        self.session = session
        self.prepared = prepared
        self.views = views
        self._is_finished = False
        gear = equip(session, prepared, layout, introduction, views, instruments, refounding)
        progress = Progress()
        self.gear, self.progress = gear, progress
        self._foreign = ForeignExchange(layout.slots, is_shared=lambda: self.num_workers > 1)
        self._hooks = GradientHooks(
            prepared.models, layout.slots, is_shared=lambda: self.num_workers > 1
        )
        guard = LayoutGuard(
            prepared.models, prepared.optimizers, layout, self._foreign, self._hooks
        )
        self.recovery = Recovery(gear, progress, shares=instruments.shares)
        self.keeping = Keeping(gear, progress, instruments.checkpointer)
        self.windows = windows = PulledWindows(gear, progress, self.recovery)
        self.calls = CollectiveCalls(gear, progress, self.recovery, windows)
        exchange = StepExchange(gear, self.recovery, windows, reduction=instruments.reduction)
        self._walk = walk = BatchWalk(
            gear, progress, self.recovery, exchange, self.keeping, windows
        )
        self.epochs = EpochWalk(gear, progress, self.recovery, self.calls, walk, self.keeping)
        self.cutting = Cutting(gear, progress, self.calls)
        self.passes = BackwardPasses(
            gear, progress, walk, exchange, windows, guard=guard, foreign=self._foreign
        )
        self.present_pass = PresentPass(gear, progress, self.recovery)
        self._norms = (
            SyncedBatchNorms(prepared.models, self.present_pass, session.communicator)
            if prepared.sync_batchnorm
            else None
        )
        self._steps = OptimizerSteps(gear, progress, walk, exchange, windows, guard=guard)
        sample_state.watch(self)

    # --- where the loop is -----------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """The next thing that this worker has to do."""
        return self.progress.position

    @property
    def epoch(self) -> int:
        """The epoch that the job is in."""
        return self.position.epoch

    @property
    def num_steps(self) -> int:
        """How many optimizer updates the job has made, as far as this loop has come."""
        present = self.gear.batches.present
        is_stepped = present is not None and present.steps > 0 and present.handout.is_update
        return self.position.step + (
            is_stepped and not self.progress.is_void and not self.gear.gradients.is_replaying
        )

    @property
    def num_workers(self) -> int:
        """How many workers the job has, in all groups; had, when this one left it."""
        behind, whole = self.gear.departure.num_behind, self.views.newest.whole
        if behind is not None:
            return behind
        return self.session.group.size if whole is None else whole.workers

    @property
    def shown(self) -> Handout | None:
        """What the batch is that the loop is at, for the questions that it asks."""
        shown = self.gear.batches.shown
        return None if shown is None else shown.handout

    @property
    def is_update(self) -> bool:
        """Whether the batch that the loop is at completes the global batch; may wait to know it."""
        self.windows.settle(self.gear.batches.shown)
        return self.shown is None or self.shown.is_update

    @property
    def sizes(self) -> tuple[int, int] | None:
        """This worker's share of the last batch but one, and of the last, where they differ."""
        return self._walk.sizes

    @property
    def has_left(self) -> bool:
        """Whether this worker takes part no longer."""
        return self.gear.departure.has_left

    @property
    def is_apart(self) -> bool:
        """Whether this worker speaks for nobody: others went on without it, or were here before it."""
        is_late = self.progress.is_late and not self.has_left
        return is_late or self.progress.is_spare or self.gear.departure.num_behind is not None

    @property
    def is_ended_by_script(self) -> bool:
        """Whether nobody has asked this worker to go: if it ends now, its script has ended."""
        return not (self.progress.is_past or self.gear.departure.is_wanted)

    @property
    def is_ended_behind(self) -> bool:
        """Whether the loop, if it is over, was left in an epoch that the others have left behind.

        They went on with what the loop would have done; at the end of the job that is nothing more.
        """
        progress = self.progress
        is_over = progress.is_through or progress.position.epoch >= NO_EPOCH
        return progress.is_late and not (is_over or self.gear.departure.is_wanted)

    # --- what the script does --------------------------------------------------------------------

    def skip_to_epoch(self, epoch: int) -> None:
        """The user's loop starts with this epoch."""
        self.progress.loop_epoch = epoch
        self.progress.is_through = False

    def no_sync(self) -> Any:
        """A context in which backward passes add up locally."""
        check_windows(self.prepared, is_pulled=self.gear.pulls is not None)
        return self.gear.gradients.paused()

    def may_write(self, state: SampleState) -> bool:
        """Whether what the loop writes into a table counts: in a ghost it does not."""
        shown = self.shown
        sample_state.check_write(
            state,
            self.gear.buffers.tables,
            is_in_batch=shown is not None,
            is_late=self.gear.gradients.num_exchanged > 0 and shown is self.gear.handout,
        )
        return shown is not None and shown.samples > 0

    def log(self, values: Mapping[str, Any]) -> None:
        """The script has numbers of the batch that it is at, or between two epochs."""
        shown, book = self.shown, self.gear.logbook
        if self.is_apart:
            return  # the others have said it
        if shown is None:
            book.note_between(values, step=self.position.step - 1, epoch=self.epoch)
        else:
            book.note(values, shown, samples=shown.samples)

    # --- the end ---------------------------------------------------------------------------------

    def find_loss(self) -> Exception | None:
        """At the end of the script: what is lost by ending here; None where all is well."""
        if self.is_ended_behind:
            return LeftBehindError(
                f"this worker came, or came back, when the others were in epoch {self.epoch}, and its "
                f"loop was left after epoch {self.progress.loop_epoch - 1}, where they went on: its "
                "parameters are not those that are trained. A loop that may be left early must go "
                "by what is the same on all workers, also on one that comes late: numbers from "
                "gangline.mean() and the like, which are kept for it, and what is in stateful="
            )
        if not self.is_ended_by_script:
            return None
        strategy = self.gear.mode.strategy
        loss = strategy.find_loss(self.position) if self.progress.is_in_epoch else None
        return loss or self.gear.membership.find_loss()

    def finish(self) -> None:
        """The script is over, and so is an epoch whose last batch was fetched ahead.

        Members that were put out, and are back, copy the final state first.
        """
        if self._is_finished:
            return
        self._is_finished = True
        if self.gear.batches.is_exhausted and self.progress.is_in_epoch:
            self.epochs.settle()
        client, waits = self.session.client, self.gear.mode.strategy.waits_at_end
        if client is None or not (client.is_elastic and waits):
            return
        if self.has_left or self.is_ended_behind:
            return
        self.gear.giver.drain()
        membership = self.gear.membership
        if membership.is_broken:
            return
        with contextlib.suppress(GanglineError):
            worker, position = self.session.place.worker, self.position._replace(epoch=NO_EPOCH)
            # Who is back may be lost again before it has the final state: then another view follows.
            while (
                view := client.wait_end(membership.group, worker=worker, timeout_s=END_WAIT_S)
            ) is not None and view.whole is None:
                membership.enter(view, position)
        membership.forget_loss()  # the state is the final one, whatever became of the last group

    def close(self) -> None:
        """Leaves the models and optimizers as if they had never been prepared."""
        gear = self.gear
        gear.logbook.close()
        with contextlib.suppress(RuntimeError):  # a device that has failed has said so by itself
            gear.late_sizes.settle()
        self._steps.close()
        gear.batches.close()
        sample_state.watch(None)
        self.keeping.close()
        gear.faults.close()
        gear.giver.close()
        self._foreign.close()
        self._hooks.close()
        gear.departure.close()
        gear.mode.strategy.close()
        gear.gradients.close()
        if self._norms is not None:
            self._norms.close()
        if gear.pacer is not None:
            gear.pacer.remove()
