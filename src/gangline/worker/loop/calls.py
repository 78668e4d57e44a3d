# SPDX-License-Identifier: Apache-2.0
"""Calls that all workers make at the same place of their loops, outside of a step.

Each has a place by which its result is kept for those that are behind. Who does again what the others
have done gets what they got; who is where nobody else will ever be is alone in the call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from gangline.collectives import SoloGroup
from gangline.spec.errors import ExchangeError, MismatchError
from gangline.spec.position import BETWEEN, ORDER, VOID
from gangline.worker.groups.membership import BACKWARD
from gangline.worker.sync.strategy import GroupLost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gangline.collectives import Group
    from gangline.protocol.messages import Heard
    from gangline.worker.loop.gear import Gear
    from gangline.worker.loop.progress import Progress
    from gangline.worker.loop.recovery import Recovery
    from gangline.worker.loop.windows import PulledWindows

T = TypeVar("T")

_NAMED = (ORDER, BETWEEN, VOID)


class CollectiveCalls:
    """Makes such calls, however often the group is lost meanwhile."""

    def __init__(
        self, gear: Gear, progress: Progress, recovery: Recovery, windows: PulledWindows
    ) -> None:
        self._gear = gear
        self._windows = windows
        self._progress = progress
        self._recovery = recovery
        self._membership = gear.membership
        self.before_call: Callable[[], None] = lambda: None
        """Called before a call of the script's: it may tell that the loop is done with its batch."""

    def make(
        self,
        exchange: Callable[[Group], T],
        key: tuple[Any, ...] | None = None,
        *,
        what: str = "the order of an epoch",
        before: Callable[[], None] = lambda: None,
    ) -> T:
        """The result of the call at the present place, or at that of `key`.

        `what` is its name, for people; `before` is called before every attempt, and may raise.
        """
        self._gear.faults.reach("call", self._progress.position.step)
        if key is None:
            self.before_call()
            self._windows.check_call(what)
        self._membership.doing = what
        try:
            if key is not None:
                return self._call(exchange, key, before)
            said, result = self._call(lambda group: (what, exchange(group)), None, before)
        finally:
            self._membership.doing = BACKWARD
        # Who is behind is given what the others got: that must have been the same call.
        if said != what:
            raise MismatchError(
                f"the workers do not make the same call: {what} here, {said} on the others. All "
                "workers must make the same gangline calls in the same order"
            )
        return result

    def _call(
        self,
        exchange: Callable[[Group], T],
        key: tuple[Any, ...] | None,
        before: Callable[[], None],
    ) -> T:
        progress, membership = self._progress, self._membership
        while not self._is_alone_in(place := key or self._place_of_call()):
            if membership.is_broken and not membership.knows(place):
                self._recovery.recover()
                continue
            before()
            try:
                result = membership.call(place, exchange)
                break
            except ExchangeError as error:
                membership.fail(error, progress.position)
        else:
            result = exchange(SoloGroup())
        if key is None:
            progress.move(calls=progress.position.calls + 1)
            progress.num_between += place[0] == BETWEEN
        return result

    @property
    def _is_on_void_batch(self) -> bool:
        """Whether the loop computes a batch that was cut for a group that is no more."""
        present = self._gear.batches.present
        return present is not None and present.is_void

    def _place_of_call(self) -> tuple[Any, ...]:
        """Names the next collective call: by the step, or between two epochs by the next epoch."""
        progress = self._progress
        # A loop may learn in the middle of a batch that the others are in a later epoch.
        if not progress.is_in_epoch and not self._is_on_void_batch:
            return (BETWEEN, progress.loop_epoch, progress.num_between)
        place = (progress.position.handed_out, progress.position.calls)
        # What is computed in an attempt that counts nothing is not what the next one computes. Nor is
        # what the loop does behind an epoch of which there is more to do.
        counts = not (progress.is_void or progress.has_rest)
        is_made = self._membership.knows(place) or place < progress.overtaken
        return place if counts or is_made else (VOID, *place)

    def _is_alone_in(self, place: tuple[Any, ...]) -> bool:
        """Whether the others make this call no more, and nobody remembers its result."""
        progress, is_known = self._progress, self._membership.knows(place)
        if self._gear.departure.has_left:
            return True
        is_in_step = place[0] not in (ORDER, BETWEEN)
        if is_in_step and (progress.is_past or self._is_on_void_batch):
            return not is_known
        # Where parts are pulled, others were in the middle of theirs when the attempt became void.
        if is_in_step and progress.is_void and self._gear.pulls is not None:
            return not is_known
        is_named = place[0] in _NAMED
        is_made = progress.position.is_behind(place) if is_named else place < progress.overtaken
        return is_made and not is_known

    def ask_whole(
        self, what: str, values: Sequence[float] = (), payload: bytes = b""
    ) -> Heard | None:
        """What all groups of the job bring to a call, outside of the epochs; None where one is all."""
        progress = self._progress
        call = (progress.loop_epoch, progress.num_between)
        while not (progress.is_in_epoch or self._gear.departure.has_left):
            try:
                return self._gear.mode.strategy.add_up(
                    values, progress.position, call=call, name=what, payload=payload
                )
            except GroupLost:
                self._recovery.recover()
        return None
