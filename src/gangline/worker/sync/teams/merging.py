# SPDX-License-Identifier: Apache-2.0
"""One worker's part in the merges of teams that train at their own pace.

A round goes through four stages, and all members of a team go from one to the next after the same
step, because they agree on it in the header of their exchange:

- opened: every member keeps a copy of its state; the team's leader exchanges it with the other leaders,
  in the background.
- arrived: the leader has the mean, and gives it to its team, in the background (`handover.py`).
- held: every member has it, and the coordinator is told so.
- closed: every team holds it. All take it: x += mean - copy, which keeps the progress made meanwhile.
  If a team was lost before, nobody takes it.

In `local(K)` the copy is taken after K steps, and all of this happens beside the next K. A team that
has made these waits for the end of the round.
"""

from __future__ import annotations

import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gangline.collectives import meet
from gangline.protocol.messages import RoundDone, RoundFailed, RoundOpened
from gangline.spec.event import Decision
from gangline.spec.sync import NESTEROV
from gangline.worker.gradients.agreement import RoundSection
from gangline.worker.session import now
from gangline.worker.sync.teams.burden import Burden
from gangline.worker.sync.teams.handover import HandOver, hand_over, have_all
from gangline.worker.sync.teams.leaders import Exchange, Leaders, compared
from gangline.worker.sync.teams.replica import Copy, Replica

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gangline.spec.sync import Sync
    from gangline.spec.view import View
    from gangline.worker.line.client import ControlClient
    from gangline.worker.prepare.prepared import Prepared
    from gangline.worker.session import Session

_log = logging.getLogger("gangline.worker")

OUTER_RATE = 0.7
OUTER_MOMENTUM = 0.9
"""The outer optimizer's, as published for DiLoCo (arXiv 2311.08105)."""

MAX_FAULTS = 3
"""So often in a row an exchange may fail for a reason of this worker's own (not the loss of another
leader); then the error is raised."""
_LOOK_S = 0.05


class Common(NamedTuple):
    """What teams had in common when they were merged last."""

    mark: tuple[int, int]
    """Epoch and offset up to which this team's samples were merged."""
    values: torch.Tensor
    """The parameters and running statistics then."""


class Merging:
    """The round that is under way, and what the last one left."""

    def __init__(self, session: Session, prepared: Prepared, view: Callable[[], View]) -> None:
        """`view` is what the members of the team agreed on last."""
        assert session.client is not None
        assert session.door is not None
        self._client: ControlClient = session.client
        self._session = session
        self._prepared = prepared
        self._replica = Replica(prepared)
        place = session.place
        self._door, self._place = session.door, place
        self._leaders: dict[int, Leaders] = {}
        """By level."""
        self._last = -1
        self.ended = -1
        """The newest round that is over for this worker."""
        self.num_steps = 0
        """How many steps the team has made since all teams waited for each other last; in `local(K)`
        since its last copy."""
        self._has_gone_on = False
        """Whether steps were made since the copy was taken."""
        self._opened: RoundOpened | None = None
        self._exchange: Exchange | None = None
        self._handing = HandOver(session, view)
        self._copy: Copy | None = None
        self._mean: Copy | None = None
        self._mark = (0, 0)
        self._common: dict[int, Common] = {}
        """By level: what the teams that are merged there had in common last."""
        self._first = Common((0, 0), self._replica.copy(is_whole=False).values)
        self._momentum: torch.Tensor | None = None
        self._busy_s = 0.0
        self._burden = Burden()
        self._is_told = False
        self._num_faults = 0

    @property
    def last(self) -> int:
        """The newest round that this worker has taken part in."""
        return self._last

    @property
    def stages(self) -> RoundSection:
        """What this worker can say in a header."""
        post, opened = self._client.post, self._opened
        number = -1 if opened is None else opened.number
        has_mean = self._exchange is not None and self._exchange.result is not None
        if self._mean is None:
            self._mean = self._handing.result
        is_held = self._mean is not None
        return RoundSection(
            opened=post.newest_opened,
            arrived=number if has_mean or is_held else -1,
            held=number if is_held else -1,
            closed=post.newest_closed,
        )

    # --- beside the training ---------------------------------------------------------------------

    def advance(
        self,
        least: RoundSection,
        most: RoundSection,
        *,
        mark: tuple[int, int],
        sync: Sync,
        step_s: float,
    ) -> Sync:
        """After a step: goes on to the next stage where all members can; how to go on from here.

        `mark` is the epoch, and how many of its samples this team has used.
        """
        start_s = time.perf_counter()
        opened = self._opened
        self._burden.add(step_s, is_calm=opened is None)
        self.num_steps += 1
        self._has_gone_on = True
        if opened is None:
            is_due = not sync.overlaps or self.num_steps >= sync.steps
            if is_due and least.opened > max(self._last, least.closed):
                self.begin(least.opened, mark, sync)
        elif least.closed >= opened.number:
            sync = self._end(sync)
        elif least.held >= opened.number:
            self._tell_held(opened)
        elif most.arrived >= opened.number:
            self._hand_over(opened)
        self._busy_s += time.perf_counter() - start_s
        return sync

    def begin(self, number: int, mark: tuple[int, int], sync: Sync) -> None:
        """Takes this team's copy; its leader begins to exchange."""
        self._last = number
        opened = self._client.post.opening(number)
        if opened is None:
            return  # so long ago that it is over
        self._opened, self._mark, self._has_gone_on = opened, mark, False
        if sync.overlaps and not opened.is_whole:
            self.num_steps = 0
        self._copy = self._replica.copy(is_whole=opened.is_end)
        self._mean, self._is_told, self._busy_s = None, False, 0.0
        self._burden.begin()
        if self._session.place.worker in opened.leaders:
            copy, samples = self._copy, self._samples
            reference, leaders = (
                self._common_at(opened.level).values,
                self._leaders_at(opened.level),
            )
            replica = self._replica
            self._exchange = Exchange(
                lambda: compared(
                    leaders.exchange(opened, copy, reference, samples), copy, reference, replica
                ),
                partial(self._fail, number),
            )

    @property
    def _samples(self) -> int:
        """How many samples this team has used since the last merge of the present level."""
        assert self._opened is not None
        epoch, offset = self._mark
        before = self._common_at(self._opened.level).mark
        return offset - before[1] if epoch == before[0] else offset

    def _common_at(self, level: int) -> Common:
        return self._common.get(level, self._first)

    def _leaders_at(self, level: int) -> Leaders:
        if level not in self._leaders:
            run, worker = self._place.run, self._place.worker
            self._leaders[level] = Leaders(self._door, run=run, worker=worker)
        return self._leaders[level]

    def _hand_over(self, opened: RoundOpened) -> None:
        """The leader's mean becomes the team's, beside the training where that can be."""
        if self._handing.is_begun:
            return  # a member does not have it yet
        if self._handing.is_possible:
            self._handing.begin(opened.number, self._own_mean, partial(self._fail, opened.number))
        else:
            self._share()

    @property
    def _own_mean(self) -> Copy | None:
        """The mean, where this worker has it: of the leaders' exchange, or from its leader."""
        mean = None if self._exchange is None else self._exchange.result
        return self._mean if mean is None else mean.copy

    def _share(self) -> None:
        """The leader's mean becomes the team's, while all wait for it."""
        own = self._own_mean
        self._mean = self._session.communicator.call(lambda group: hand_over(group, own))

    def _fail(self, number: int, error: str) -> None:
        """Something that is done beside the training has failed: the round counts nothing."""
        self._client.send(RoundFailed(number=number, error=error[:1000]))

    def _tell_held(self, opened: RoundOpened) -> None:
        if self._is_told or self._exchange is None or self._exchange.result is None:
            return
        self._is_told = True
        mean = self._exchange.result
        self._client.send(
            RoundDone(
                number=opened.number,
                epoch=self._mark[0],
                offset=self._mark[1],
                busy_s=max(self._busy_s + mean.cpu_s, self._burden.seconds),
                exchange_s=mean.took_s,
                drift=self._drift(mean.apart, mean.moved),
                sent_bytes=mean.sent_bytes,
            )
        )

    @staticmethod
    def _drift(apart: float, moved: float) -> float:
        """How far this team is from the mean, by how far that has moved; 0 where it is no number."""
        drift = apart / moved if moved > 0 else 0.0
        return min(drift, 1e6) if math.isfinite(drift) else 0.0

    def _end(self, sync: Sync) -> Sync:
        """The round is over: takes its mean, or drops it."""
        assert self._opened is not None
        closed = self._client.post.closing(self._opened.number)
        is_committed = closed is not None and closed.is_committed
        if is_committed and self._mean is not None:
            self._apply(self._opened, self._mean, sync)
        elif self._exchange is not None:
            leaders = self._leaders_at(self._opened.level)
            leaders.break_off(self._exchange)
            leaders.undo()
        self._handing.end(is_committed=is_committed)
        if is_committed and self._opened.is_whole:
            self.num_steps = 0
        self.ended = self._opened.number
        fault = None if self._exchange is None else self._exchange.fault
        self._opened = self._exchange = self._copy = self._mean = None
        self._judge(fault)
        return sync if closed is None else closed.sync

    def _judge(self, fault: Exception | None) -> None:
        """A round is tried again after a fault of this worker's own, but not for ever."""
        self._num_faults = 0 if fault is None else self._num_faults + 1
        if fault is not None and self._num_faults >= MAX_FAULTS:
            raise fault

    def _apply(self, opened: RoundOpened, mean: Copy, sync: Sync) -> None:
        assert self._copy is not None
        replica, change = self._replica, None
        if sync.outer == NESTEROV and (opened.is_whole or sync.overlaps):
            mean = self._stepped(mean)
        elif self._exchange is not None and self._exchange.result is not None:
            change = self._exchange.result.change
        is_wrong = not self._copy.is_finite
        if is_wrong or (opened.is_whole and not self._has_gone_on):
            replica.become(mean)
        else:
            if change is None:
                change = replica.difference(mean.values, self._copy.values)
            replica.move(change)
        if is_wrong:
            self._begin_anew(opened, mean)
        # Those of a higher level are those of all levels below it.
        shared, is_whole = mean.values[: replica.num_shared], len(mean.values) > replica.num_shared
        common = Common(self._mark, shared.clone() if is_whole else shared)
        self._common |= dict.fromkeys(range(opened.level + 1), common)

    def _begin_anew(self, opened: RoundOpened, mean: Copy) -> None:
        """This team's values were not numbers: it has the others' now, without optimizer state."""
        self._replica.forget_wrong_moments()
        if self._place.worker not in opened.leaders or not mean.is_finite:
            return
        reason = (
            f"the parameters of worker {self._place.worker}'s team were not numbers: they count "
            "nothing in the merge, and the team goes on from the others' mean. Its steps use a part of "
            "the global batch: a learning rate that fits the whole batch may be too high for them"
        )
        numbers = {"worker": float(self._place.worker), "round": float(opened.number)}
        self._session.record(Decision(t=now(), what="begin_anew", reason=reason, numbers=numbers))
        _log.warning("gangline: %s", reason)

    def _stepped(self, mean: Copy) -> Copy:
        """The outer optimizer's step: Nesterov momentum along the way that the mean has gone."""
        count = self._replica.num_parameters
        reference = self._common_at(0).values[:count]
        way = mean.values[:count] - reference
        before = torch.zeros_like(way) if self._momentum is None else self._momentum
        self._momentum = OUTER_MOMENTUM * before + way
        values = mean.values.clone()
        values[:count] = reference + OUTER_RATE * (way + OUTER_MOMENTUM * self._momentum)
        return Copy(values, mean.counters)

    # --- while the team waits --------------------------------------------------------------------

    def complete(self, sync: Sync) -> Sync:
        """Brings the round that is under way to its end, with everybody waiting for it."""
        opened = self._opened
        if opened is None:
            return sync
        post, number, exchange = self._client.post, opened.number, self._exchange
        while exchange is not None and exchange.is_under_way:
            exchange.wait(_LOOK_S)
            if post.newest_closed >= number:
                self._leaders_at(opened.level).break_off(exchange)
        self._complete_hand_over(lambda: post.newest_closed >= number)
        if self._mean is not None:
            self._session.communicator.call(meet)
            self._tell_held(opened)
        self._client.wait_post(lambda: post.newest_closed >= number or None, "the end of a round")
        return self._end(sync)

    def _complete_hand_over(self, is_over: Callable[[], bool]) -> None:
        """All members have the leader's mean, or none has."""
        if self._handing.is_begun:
            self._handing.wait(is_over)
            is_here = self._own_mean is not None or self._handing.result is not None
            if self._session.communicator.call(lambda group: have_all(group, is_here)):
                self._mean = self._own_mean or self._handing.result
                return
        self._share()

    def catch_up(self, number: int, sync: Sync) -> Sync:
        """Another member of the team has ended this round: so does this one, after the same step."""
        if self.ended >= number:
            return sync
        post, opened = self._client.post, self._opened
        if opened is not None:
            number = opened.number
            self._client.wait_post(
                lambda: post.newest_closed >= number or None, "the end of a round"
            )
            return self._end(sync)
        self.ended = self._last = number  # it cannot have been committed without this member
        return sync

    # --- for members that come later -------------------------------------------------------------

    def export(self) -> dict[str, Any]:
        """What a member of the same team needs to go on as this one does."""
        opened = self._opened
        return {
            "last": self._last,
            "ended": self.ended,
            "steps": self.num_steps,
            "opened": None
            if opened is None
            else [opened.number, opened.group, opened.is_whole, opened.level, opened.leaders],
            "copy": None if self._copy is None else [self._copy.values, [*self._copy.counters]],
            "mean": None if self._mean is None else [self._mean.values, [*self._mean.counters]],
            "mark": list(self._mark),
            "common": {level: [[*mark], values] for level, (mark, values) in self._common.items()},
            "first": self._first.values,
            "momentum": self._momentum,
            "is_trusted": self._handing.is_trusted,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Becomes like the member that exported this."""
        self.drop()
        self._last, self.ended, self.num_steps = state["last"], state["ended"], state["steps"]
        if state["opened"] is not None:
            number, group, is_whole, level, leaders = state["opened"]
            if self._place.worker in leaders:  # nobody leads it now, so it must be made again
                self._client.send(RoundFailed(number=number, error="its leader has fallen behind"))
            self._opened = RoundOpened(
                number=number,
                group=group,
                is_whole=is_whole,
                level=level,
                leaders=(),
                addresses=(),
            )
            values, counters = state["copy"]
            self._copy = Copy(values, tuple(counters))
            if state["mean"] is not None:
                values, counters = state["mean"]
                self._mean = Copy(values, tuple(counters))
        self._handing.is_trusted = state["is_trusted"]
        self._mark = tuple(state["mark"])
        self._first, self._momentum = Common((0, 0), state["first"]), state["momentum"]
        self._common = {
            level: Common(tuple(mark), values) for level, (mark, values) in state["common"].items()
        }

    def restart(self, epoch: int) -> None:
        """The team is another one: nothing of its order is used, and all teams are alike."""
        self._mark = (epoch, 0)
        newest = self._common_at(max(self._common, default=0)).values
        self._first, self._common = Common(self._mark, newest), {}

    def leave_out(self, alike: Sequence[torch.Tensor]) -> None:
        """From now on these parameters are not merged: by their servers all teams have them alike.

        All teams are alike now, and nothing is under way.
        """
        self._replica = Replica(self._prepared, alike=alike)
        self._common = {}
        self._first = Common(self._mark, self._replica.copy(is_whole=False).values)

    def drop(self) -> None:
        """Takes no further part in the round that is under way."""
        if self._exchange is not None and self._opened is not None:
            self._leaders_at(self._opened.level).break_off(self._exchange)
        self._handing.close()
        self._opened = self._exchange = self._copy = self._mean = None

    def close(self) -> None:
        """Ends what is under way."""
        self.drop()
        for leaders in self._leaders.values():
            leaders.leave()
