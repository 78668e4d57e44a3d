# SPDX-License-Identifier: Apache-2.0
"""A group of simulated workers that make every step together: a team, or all workers of a job.

What it knows is what all of its members know. What it can do at the end of a step is what it knew when
it had computed: its members agree on it in the header of their exchange. Its members act as one; only
those to whom something happens, the odd ones, are looked at one by one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.planning.allocation.ragged import cut_shares
from gangline.protocol.messages import LeaseAsked
from gangline.simulation.course import Position
from gangline.simulation.engine.costs import Costs
from gangline.simulation.engine.meeting import Meetings
from gangline.simulation.engine.parting import Parting
from gangline.simulation.engine.pushing import Pushing
from gangline.simulation.engine.rounds import Round
from gangline.simulation.engine.tearing import Tearing
from gangline.simulation.engine.telling import Telling
from gangline.simulation.reporting import MANY_WORKERS, adopted, epoch_event
from gangline.simulation.views import ViewSchedule
from gangline.spec.leases import TeamOrder
from gangline.spec.sync import LOCAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.planning.allocation.bounds import Shares
    from gangline.simulation.engine.field import Field
    from gangline.simulation.engine.member import Member
    from gangline.simulation.engine.progress import Progress, Pulled
    from gangline.spec.view import View


class Crew:
    """Leads its members from step to step, and to their meetings with other teams."""

    def __init__(
        self, field: Field, view: View, members: Sequence[Member], progress: Progress
    ) -> None:
        self.view = view
        self.members = tuple(members)
        self.ranks = {member.worker: rank for rank, member in enumerate(self.members)}
        self.odd = {r: one for r, one in enumerate(self.members) if one.life.is_marked}
        """The members to whom something may happen, by rank."""
        self.progress = progress
        self.round: Round | None = None
        """The step that it is at, or the end of an epoch."""
        self.is_broken = False
        """Whether some of its members are not in it any more: nothing more comes of it."""
        self.costs = Costs(field, self.members, field.rng_of(view))
        self.pushing = Pushing(self, field)
        self.meetings = Meetings(self, field)
        self.parting = Parting(self, field)
        self.telling = Telling(self, field, self.costs)
        self._tearing = Tearing(self, field)
        self._field = field
        self._schedule = ViewSchedule(
            view,
            [member.view for member in self.members],
            lag_steps=field.scenario.view_lag_steps,
            last_done=progress.position.step - 1,
        )
        self._shares: Shares = np.zeros(0, dtype=np.int64)
        self._is_leasing = False
        self._announce(view)

    @property
    def number(self) -> int:
        """The team's number, 0 where there is only one."""
        return max(0, self.view.team)

    # --- what it is told -------------------------------------------------------------------------

    def attend(self, member: Member) -> None:
        """A member was told something."""
        if self.meetings.must_part(member):
            self.meetings.part(member)
            return
        if self.is_broken:
            self.parting.notice(member)
            return
        if self._is_leasing:
            self.go_on()
        else:
            self.pushing.look()
            self.meetings.look()

    def hear_view(self, before: View | None, view: View) -> None:
        """A member knows of a view, and knew of another one before."""
        self._schedule.hear(before, view, last_done=self.progress.position.step - 1)

    def _announce(self, view: View) -> None:
        self.view = view
        self._shares = np.array(view.shares, dtype=np.int64)
        event = adopted(self._field.now, view, step=self.progress.position.step)
        self._field.sink(msgspec.structs.replace(event, team=self.number))

    # --- the next thing to do --------------------------------------------------------------------

    def go_on(self) -> None:
        """All members are at the same position: they do what comes next."""
        if self.is_broken:
            return
        self._is_leasing = False
        position = self.progress.position
        view = self._schedule.take(position.step)
        if view is not None and view.group != self.view.group:
            self.parting.leave_together()
            return
        if view is not None:
            self._announce(view)
        if self.view.whole is None:
            self._go_on_in_step(position)
            return
        if self.view.whole.is_root:
            stop: int | None = position.start  # all of a job that was one: they stop, and part
        else:
            self.pushing.begin()
            stop = self._reach(position.start + self.view.global_batch)
        if stop is None:
            self._is_leasing = True
        elif stop > position.start:
            self._begin_step(stop)
        else:
            self.pushing.flush(lambda: self.meetings.stop(is_end=True))

    def _go_on_in_step(self, position: Position) -> None:
        field = self._field
        if field.is_epoch_over(position):
            ahead = Round(self.view, position, ranks=self.ranks, started_s=field.now)
            ahead.after = Position(step=position.step, epoch=position.epoch + 1)
            self._begin(ahead)
        elif field.steps is not None and position.step >= field.steps:
            self._finish()
        else:
            stop = position.start + int(self._shares.sum())
            self._begin_step(stop if field.length is None else min(stop, field.length))

    def _reach(self, stop: int) -> int | None:
        """How far the team's order goes, up to `stop`; None: it waits to be told."""
        progress = self.progress
        epoch, order = progress.position.epoch, progress.order
        while order.given < stop:
            key = (epoch, len(order))
            if any(key not in member.inbox.leases for member in self.members):
                self._ask(*key)
                return None
            lease = self.members[0].inbox.leases[key]
            if lease.start == lease.stop:
                break
            order.append(lease)
            self._ask(epoch, len(order))  # so that it is there when it is needed
        return min(stop, order.given)

    def _ask(self, epoch: int, number: int) -> None:
        for member in self.members:
            is_known = (epoch, number) in member.inbox.leases
            if not is_known and member.asked != (epoch, number) and member.is_able:
                member.asked = (epoch, number)
                length = self._field.length or 0
                member.say(LeaseAsked(epoch=epoch, number=number, length=length))

    def close_epoch(self, step: int) -> None:
        """All samples of the epoch were used; the next step has this number."""
        progress, field = self.progress, self._field
        if self.view.whole is not None or len(self.members) <= MANY_WORKERS:
            for member in self.members:
                event = epoch_event(field.now, member.worker, progress.position)
                field.sink(msgspec.structs.replace(event, team=self.number))
        progress.position = Position(step=step, epoch=progress.position.epoch + 1)
        progress.order = TeamOrder()
        if field.epochs is not None and progress.position.epoch >= field.epochs:
            self._finish()

    def _finish(self) -> None:
        self.is_broken = True
        self._field.finish(self.members, is_job=self.view.whole is None)

    # --- rounds ----------------------------------------------------------------------------------

    def _begin_step(self, stop: int) -> None:
        field, position = self._field, self.progress.position
        slowdown = self.costs.slowdown(position.step, self.odd)
        parts: list[list[tuple[int, int]]] = []
        if field.pulls.is_on and self.view.whole is None:
            costs = self.costs.part_costs(step=position.step, slowdown=slowdown)
            samples, compute_s, parts = field.pulls.pull(
                self.view, position, stop, costs=costs, ceilings=self.costs.ceilings
            )
        else:
            samples = self._cut(stop - position.start)
            compute_s = self.costs.compute_s(samples, step=position.step, slowdown=slowdown)
        step = Round(
            self.view, position, ranks=self.ranks, started_s=field.now, compute_s=compute_s
        )
        step.samples, step.slowdown, step.parts = samples, slowdown, parts
        step.after = Position(step=position.step + 1, epoch=position.epoch, start=stop)
        self._begin(step)

    def _cut(self, total: int) -> Shares:
        if total == self._shares.sum():
            return self._shares
        parts = cut_shares(total, self.view.shares, minimum=self._field.minimum)
        return np.array(parts, dtype=np.int64)

    def _begin(self, ahead: Round) -> None:
        field = self._field
        self.round = ahead
        for member in self.odd.values():
            life = member.life
            if not life.is_alive or member.crew is not self:
                ahead.lose(life.worker)
            elif life.is_hung(field.now):
                ahead.delay(life.worker, until=life.hung_until, now=field.now)
        if ahead.gone:
            self.parting.end_round()
        else:
            self._schedule_ready(ahead)
        for member in self.odd.values():
            if member.life.has_faults:
                # Not before everybody has set out: what happens at once may break the round.
                field.later(0.0, partial(field.strikes.approach, ahead, member.life))

    def _schedule_ready(self, ahead: Round) -> None:
        ready_s = float(ahead.ready_s.max())
        if ready_s < float("inf"):
            # After whatever happens to the last one on its way at the same instant.
            self._field.clock.schedule(ready_s, lambda: self._ready(ahead), priority=1)

    def _ready(self, ahead: Round) -> None:
        """All members are there: they exchange, and agree on what they know."""
        field = self._field
        if self.round is not ahead or ahead.is_broken:
            return
        if field.now < float(ahead.ready_s.max()):
            self._schedule_ready(ahead)  # somebody was held up
            return
        stage = self.meetings.find_stage()
        if ahead.is_step:
            structure = self.view.structure
            ahead.exchange_s = self.costs.exchange_s(ahead.position.step, structure)
            ahead.lasts_s = ahead.exchange_s + field.scenario.update_s
        if ahead.is_step and self.pushing.service is not None:
            field.later(ahead.lasts_s, lambda: self._update(ahead, stage))
        else:
            self.end_later(ahead, stage, after_s=ahead.lasts_s)

    def _update(self, ahead: Round, stage: str) -> None:
        """The members have their gradient: parameter servers make the update."""
        if self.round is not ahead or ahead.is_broken:
            return
        begun_s = self._field.now

        def end(pulled: Pulled) -> None:
            if self.round is ahead and not ahead.is_broken:
                ahead.pulled, ahead.served_s = pulled, self._field.now - begun_s
                self.end_later(ahead, stage, after_s=0.0)

        since_s = ahead.place_s(self.members[0].worker, "backward")
        self.pushing.update(ahead.after.start, end, since_s=since_s)

    def end_later(self, ahead: Round, stage: str, *, after_s: float) -> None:
        """A round ends after so many seconds."""
        at_s = self._field.now + after_s
        self._field.clock.schedule(at_s, lambda: self._end(ahead, stage), priority=1)

    def _end(self, done: Round, stage: str) -> None:
        field, progress = self._field, self.progress
        if self.round is not done or done.is_broken:
            return
        awake_s = max((member.life.hung_until for member in self.odd.values()), default=0.0)
        if awake_s > field.now:
            self.end_later(done, stage, after_s=awake_s - field.now)
            return
        if self._tearing.tear(done, stage):
            return
        done.is_over, self.round = True, None
        field.progress_s = field.now
        if not done.is_step:
            self.close_epoch(done.position.step)
            field.later(0.0, self.go_on)
            return
        progress.position = done.after
        progress.pulled = done.pulled or progress.pulled
        progress.steps += 1
        for member in self.odd.values():
            if member.worker not in done.ahead:
                field.strikes.come_to(member.life, "update", step=done.position.step)
        others = (
            [one for one in self.members if one.worker not in done.ahead] if done.ahead else None
        )
        self.report(done, others)
        field.note_step(self, done)
        busy_s = self.meetings.advance(stage)
        sync = progress.sync
        if sync.kind == LOCAL and self.view.whole is not None and progress.steps >= sync.steps:
            field.later(busy_s, lambda: self.meetings.stop(is_end=False))
        else:
            # After what all were told because of this step.
            field.clock.schedule(field.now + busy_s, self.go_on, priority=1)

    def report(self, done: Round, members: Sequence[Member] | None) -> None:
        """These have done the step (None: all): they say so, now or when they wake, and go on."""
        field = self._field
        looked_at = tuple(self.odd.values() if members is None else members)
        able = [one for one in looked_at if one.is_able]
        missing = [one for one in looked_at if not one.is_able]
        for member in missing:
            if member.life.is_alive and member.life.is_hung(field.now):
                member.life.when_awake.append(partial(self.report, done, [member]))
        if members is None:
            self.telling.tell_all(done, missing)
        elif able:
            self.telling.tell_some(done, able)
        for member in able:
            field.strikes.come_to(member.life, "between", step=done.position.step)

    def come_to(self, place: str) -> None:
        """All members have come to a place: what waits for them there happens."""
        for member in self.odd.values():
            self._field.strikes.come_to(member.life, place, step=self.progress.position.step)
