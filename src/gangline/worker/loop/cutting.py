# SPDX-License-Identifier: Apache-2.0
"""How the epoch is cut into batches: by which view, in which order, how far."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from gangline.spec.errors import ExchangeAborted
from gangline.worker.sync.strategy import GroupLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.collectives import Group
    from gangline.spec.position import Position
    from gangline.spec.view import View
    from gangline.worker.loop.calls import CollectiveCalls
    from gangline.worker.loop.gear import Gear
    from gangline.worker.loop.progress import Progress
    from gangline.worker.samples.order import Company
    from gangline.worker.samples.pulling import Pool, Pulls

T = TypeVar("T")


class Cutting:
    """What the sampler must know of the job, which may cut ahead of the loop."""

    def __init__(self, gear: Gear, progress: Progress, calls: CollectiveCalls) -> None:
        self._gear = gear
        self._progress = progress
        self._calls = calls

    @property
    def cut_from(self) -> Position:
        """From where on the loader cuts: behind what the loop has fetched and not computed yet."""
        newest, position = self._gear.batches.newest, self._progress.position
        if newest is None or newest.is_void:
            return position
        handout = newest.handout
        return position._replace(epoch=handout.epoch + 1, step=handout.step + 1, start=0)

    def view_for(self, step: int) -> tuple[View, int | None]:
        """The view by which the batches of `step` are cut, and this worker's rank if it is in it."""
        self._progress.random.go_on()
        self._gear.faults.reach("data", step)
        view = self._gear.views.cut(step)
        self._gear.mode.follow(view)
        worker = self._gear.session.place.worker
        return view, view.rank_of(worker) if worker in view.members else None

    @property
    def company(self) -> Company:
        """With whom this worker goes through the epoch."""
        return self._gear.mode.strategy.company

    def agree_on_order(self, exchange: Callable[[Group], T], key: tuple[str, int]) -> T:
        """What the workers have drawn as the order of an epoch."""
        progress, membership = self._progress, self._gear.membership
        truths = membership.num_truths
        order = self._calls.make(exchange, key)
        # Where the group was lost meanwhile, the job may stand elsewhere: then the epoch is cut anew.
        is_void = progress.is_void and membership.num_truths != truths
        progress.is_cut_off = is_void or progress.is_past
        return order

    def reach(self, start: int, stop: int, *, length: int) -> int:
        """How far this worker's group may go from `start` in its order of the epoch: up to `stop`."""
        progress = self._progress
        if progress.is_cut_off:
            return start
        try:
            return self._gear.mode.strategy.reach(progress.position, start, stop, length=length)
        except GroupLost:
            progress.is_cut_off = True
            return start

    @property
    def pulls(self) -> Pulls | None:
        """Where parts of global batches are pulled: who asks for them."""
        return self._gear.pulls

    @property
    def is_cut_off(self) -> bool:
        """Whether the epoch cannot be cut to its end: the group is lost."""
        return self._progress.is_cut_off

    def pull(self, pool: Pool, micro: int) -> tuple[int, int] | None:
        """This worker's part `micro` of a pool; None: there is none, or the group is lost."""
        assert self._gear.pulls is not None
        try:
            return self._gear.pulls.take(pool, micro)
        except ExchangeAborted as error:
            self._gear.membership.fail(error, self._progress.position)
            self._progress.is_cut_off = True
            return None

    def locate(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Where in the epoch's order this part of the group's own order is."""
        return self._gear.mode.strategy.locate(start, stop)
