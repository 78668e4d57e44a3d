# SPDX-License-Identifier: Apache-2.0
"""Windows whose parts are pulled: whether a part is this worker's last one, and what follows from it.

Workers make different numbers of turns in one step. So what a loop does once per step, together with
the others or to its learning rates, it must do in the turn that completes the global batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.spec.errors import ExchangeAborted, MismatchError, UsageError
from gangline.worker.checks.rates import rates_checksum
from gangline.worker.gradients.buffers import WholeNumbers

if TYPE_CHECKING:
    from torch import Tensor

    from gangline.worker.gradients.agreement import Agreed
    from gangline.worker.loop.gear import Gear
    from gangline.worker.loop.progress import Progress
    from gangline.worker.loop.recovery import Recovery
    from gangline.worker.samples.fetched import Fetched
    from gangline.worker.samples.handout import Handout

_PULLED = (
    "the parts of each global batch are pulled (allocation), so workers make different numbers of "
    "turns in one step"
)


class PulledWindows:
    """Looks at each part that the loop computes; where nothing is pulled, it has nothing to do."""

    def __init__(self, gear: Gear, progress: Progress, recovery: Recovery) -> None:
        self._gear = gear
        self._progress = progress
        self._recovery = recovery
        self._rates = 0
        self._counters = WholeNumbers(gear.prepared.models)
        self._versions: dict[str, tuple[int, int]] = {}
        self._counted: dict[str, Tensor] = {}
        """What buffers that count passes had after the first part of the present step."""
        self._steps_always = False
        """Whether the loop calls step() in turns that complete no global batch."""

    # --- a part ----------------------------------------------------------------------------------

    def begin(self, handout: Handout) -> None:
        """The loop goes on to this part."""
        pulls = self._gear.pulls
        if pulls is None or handout.pool is None:
            return
        pulls.begin()
        if handout.micro == 0:
            self._rates = rates_checksum(self._gear.prepared.optimizers)
            self._versions, self._counted = self._counters.versions, {}

    def ask_ahead(self) -> None:
        """A backward pass begins: the next part is asked for, and may be there when it is over."""
        handout, pulls = self._gear.handout, self._gear.pulls
        if (
            pulls is not None
            and handout is not None
            and not self._is_void(self._gear.batches.present)
        ):
            pulls.ask_behind(handout)

    def end_pass(self) -> None:
        """A backward pass is over: the present part is the last one, or there is another one."""
        pulls, handout = self._gear.pulls, self._gear.handout
        if pulls is not None and handout is not None and handout.is_open:
            # A GPU has queued the pass: who asked for more before it is made would get too much.
            self._gear.gradients.await_devices()
            self._gear.clock.computed()
            pulls.end(handout.samples)
            if handout.micro == 0 and not self._counted:
                self._counted = self._counters.copies(self._versions)
            self.settle(self._gear.batches.present)
            self._gear.clock.exchanged()

    def settle(self, batch: Fetched | None) -> None:
        """Finds out whether there is another part after this one. Waits for the coordinator."""
        gear = self._gear
        if gear.pulls is None or batch is None or not batch.handout.is_open or self._is_void(batch):
            return
        gear.faults.reach("part", batch.handout.step)
        try:
            is_last = gear.pulls.is_last(batch.handout)
        except ExchangeAborted as error:
            self._recovery.lose(error)
            return
        if is_last:
            batch.handout = batch.handout.closed()
            if batch is gear.batches.present:
                gear.gradients.close_window(part=batch.handout.share / batch.handout.total)

    def _is_void(self, batch: Fetched | None) -> bool:
        is_void = self._progress.is_void or (batch is not None and batch.is_void)
        return is_void or self._gear.departure.has_left

    def end_turn(self, batch: Fetched) -> None:
        """The loop is done with a part; a step counts as one pass, whatever number of parts it had."""
        self._check_turn(batch)
        if batch.handout.is_update and batch.handout.micro > 0 and not self._is_void(batch):
            self._counters.put_back(self._counted)

    # --- what the loop does in it ----------------------------------------------------------------

    def note_step(self, handout: Handout | None) -> None:
        """The loop called `step()` in a turn in which it is not due."""
        self._steps_always |= handout is not None and handout.is_open

    def _check_turn(self, batch: Fetched) -> None:
        """Refuses what the loop has done in a part, if it cannot be right."""
        handout = batch.handout
        if handout.pool is None or self._is_void(batch):
            return
        if handout.is_update and self._steps_always and batch.steps == 0 and batch.passes:
            raise UsageError(
                f"{_PULLED}, and this loop has called step() in some turns and not in the one that "
                "completed the global batch: call optimizer.step() in every turn, or where "
                "gangline.is_update() is true. Windows of your own cannot be counted in turns"
            )
        if handout.is_open and rates_checksum(self._gear.prepared.optimizers) != self._rates:
            raise UsageError(
                f"{_PULLED}, and a learning rate was changed in a turn that does not complete the "
                "global batch: call scheduler.step() where gangline.is_update() is true, or between "
                "epochs"
            )

    def check_call(self, what: str) -> None:
        """Refuses a call that all workers must make, in a turn that others may not have."""
        handout = self._gear.handout
        if (
            handout is not None
            and handout.is_open
            and not self._is_void(self._gear.batches.present)
        ):
            raise UsageError(
                f"{_PULLED}: {what} is a call of all workers, and others may not make it in this turn. "
                "Make it where gangline.is_update() is true, or after the loop"
            )

    def check_parts(self, handout: Handout, agreed: Agreed) -> None:
        """Raises MismatchError unless the members have computed the global batch, all together."""
        if handout.pool is not None and sum(agreed.shares) != handout.total:
            shares = ", ".join(map(str, agreed.shares))
            raise MismatchError(
                f"step {handout.step} has {handout.total} samples, and its members have computed "
                f"{sum(agreed.shares)} ({shares}): a loop has left out a turn, or an iteration over "
                "the loader was begun anew in the middle of a global batch"
            )
