# SPDX-License-Identifier: Apache-2.0
"""A group of simulated workers that make every step together: a team, or all workers of a job.

What it knows is what all of its members know. What it can do at the end of a step is what it knew when
it had computed: its members agree on it in the header of their exchange.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.planning.allocation.ragged import cut_shares
from gangline.protocol.messages import LeaseAsked, Measured
from gangline.simulation.course import Position
from gangline.simulation.in_step.rounds import Round
from gangline.simulation.reporting import adopted, epoch_event, worker_events
from gangline.simulation.teams.meeting import Meetings
from gangline.simulation.teams.parting import Parting
from gangline.simulation.views import ViewSchedule
from gangline.spec.leases import TeamOrder
from gangline.spec.sync import LOCAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.planning.allocation.bounds import Floats, Shares
    from gangline.simulation.teams.field import Field
    from gangline.simulation.teams.member import Member
    from gangline.simulation.teams.progress import Progress
    from gangline.spec.view import View


class Crew:
    """Leads its members from step to step, and to their meetings with other teams."""

    def __init__(
        self, field: Field, view: View, members: Sequence[Member], progress: Progress
    ) -> None:
        self.view = view
        self.members = tuple(members)
        self.progress = progress
        self.round: Round | None = None
        """The step that it is at."""
        self.is_broken = False
        """Whether some of its members are not in it any more: nothing more comes of it."""
        self._field = field
        self._rng = np.random.default_rng((field.seed, 4, 1 + view.team, view.group))
        self._schedule = ViewSchedule(lag_steps=field.scenario.view_lag_steps)
        self._newest = view.number
        self._is_leasing = False
        self.meetings = Meetings(self, field)
        self.parting = Parting(self, field)
        self._announce(view)

    @property
    def number(self) -> int:
        """The team's number, 0 where there is only one."""
        return max(0, self.view.team)

    @property
    def rows(self) -> list[int]:
        """Which of the scenario's workers the members are."""
        return [member.life.row for member in self.members]

    # --- what it is told -------------------------------------------------------------------------

    def attend(self, member: Member) -> None:
        """A member was told something."""
        if self.meetings.must_part(member):
            self.meetings.part(member)
            return
        if self.is_broken:
            self.parting.notice(member)
            return
        self._note_views()
        if self._is_leasing:
            self.go_on()
        else:
            self.meetings.look()

    def _note_views(self) -> None:
        """A view that all members know of holds a few steps later."""
        views = [member.view for member in self.members]
        known = min((-1 if view is None else view.number for view in views), default=-1)
        found = [view for view in views if view is not None and view.number == known]
        if found and known > self._newest:
            self._newest = known
            last_done = self.progress.position.step - 1
            self._schedule.publish(found[0], last_done=last_done, unaware=set())

    def _announce(self, view: View) -> None:
        self.view = view
        event = adopted(self._field.now, view, step=self.progress.position.step)
        self._field.sink(msgspec.structs.replace(event, team=self.number))

    # --- the next thing to do --------------------------------------------------------------------

    def go_on(self) -> None:
        """All members are at the same position: they do what comes next."""
        if self.is_broken:
            return
        self._is_leasing = False
        position, field = self.progress.position, self._field
        view = self._schedule.take(position.step)
        if view is not None and view.group != self.view.group:
            self.parting.leave_together()
            return
        if view is not None:
            self._announce(view)
        whole = self.view.whole
        if whole is None:
            stop: int | None = position.window_stop(self.view, length=field.length)
        elif whole.is_root:
            stop = position.start  # all workers of a job that was one: they stop, and part
        else:
            stop = self._reach(position.start + self.view.global_batch)
        if stop is None:
            self._is_leasing = True
        elif stop > position.start:
            self._begin_step(stop)
        elif whole is None:
            self._end_epoch_in_step()
        else:
            self.meetings.stop(is_end=True)

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
                member.say(LeaseAsked(epoch=epoch, number=number, length=self._field.length))

    def _end_epoch_in_step(self) -> None:
        self.come_to("end")
        self.come_to("call")
        self.close_epoch(self.progress.position.step)
        self._field.later(0.0, self.go_on)

    def close_epoch(self, step: int) -> None:
        """All samples of the epoch were used; the next step has this number."""
        progress, field = self.progress, self._field
        for member in self.members:
            event = epoch_event(field.now, member.worker, progress.position)
            field.sink(msgspec.structs.replace(event, team=self.number))
        progress.position = Position(step=step, epoch=progress.position.epoch + 1)
        progress.order = TeamOrder()
        if progress.position.epoch >= field.epochs:
            self.is_broken = True
            for member in self.members:
                field.finish(member)

    # --- steps -----------------------------------------------------------------------------------

    def _begin_step(self, stop: int) -> None:
        field, position = self._field, self.progress.position
        parts = cut_shares(stop - position.start, self.view.shares, minimum=field.minimum)
        samples = np.array(parts, dtype=np.int64)
        compute_s = self._compute_s(samples)
        step = Round(self.view, position, started_s=field.now, compute_s=compute_s)
        step.samples = samples
        step.after = Position(step=position.step + 1, epoch=position.epoch, start=stop)
        self.round = step
        for member in self.members:
            life = member.life
            if not life.is_alive or member.crew is not self:
                step.lose(life.worker)
            elif life.is_hung(field.now):
                step.delay(life.worker, until=life.hung_until, now=field.now)
        if step.gone:
            self.parting.end_round()
        else:
            self._schedule_ready(step)
        for member in self.members:
            if member.life.has_faults:
                # Not before everybody has set out: what happens at once may break the step.
                field.later(0.0, partial(field.strikes.approach, step, member.life))

    def _compute_s(self, samples: Shares) -> Floats:
        field, step = self._field, self.progress.position.step
        rows = np.array(self.rows, dtype=np.int64)
        slowdown = field.workers.slowdown(step, now=field.now)[rows]
        for rank, member in enumerate(self.members):
            if step < member.life.slow_until:
                slowdown[rank] *= member.life.slow_factor
        chosen = field.workers.selected(rows)
        return chosen.compute_s(samples, step=step, slowdown=slowdown, rng=self._rng)

    def _schedule_ready(self, step: Round) -> None:
        ready_s = float(step.ready_s.max())
        if ready_s < float("inf"):
            self._field.clock.schedule(ready_s, lambda: self._ready(step), priority=1)

    def _ready(self, step: Round) -> None:
        """All members have computed: they exchange, and agree on what they know."""
        field = self._field
        if self.round is not step or step.is_broken:
            return
        if field.now < float(step.ready_s.max()):
            self._schedule_ready(step)  # somebody was held up
            return
        stage = self.meetings.find_stage()
        if len(self.members) > 1:
            took_s = field.network.group_s(
                self._groups(), field.now, num_bytes=field.scenario.model_bytes
            )
            step.exchange_s = field.scenario.exchange_s + took_s
        step.lasts_s = step.exchange_s + field.scenario.update_s
        field.later(step.lasts_s, lambda: self._end_step(step, stage))

    def _groups(self) -> list[list[int]]:
        """The rows that exchange with each other first, and by their leaders then."""
        row_of = {member.worker: member.life.row for member in self.members}
        structure = self.view.structure
        parts = () if structure is None else structure.groups
        return [[row_of[one] for one in part.workers] for part in parts] or [self.rows]

    def _end_step(self, step: Round, stage: str) -> None:
        field, progress = self._field, self.progress
        if self.round is not step or step.is_broken:
            return
        awake_s = max(member.life.hung_until for member in self.members)
        if awake_s > field.now:
            field.clock.schedule(awake_s, lambda: self._end_step(step, stage))
            return
        step.is_over, self.round = True, None
        progress.position, field.progress_s = step.after, field.now
        progress.steps += 1
        field.num_steps += 1
        self._report(step)
        busy_s = self.meetings.advance(stage)
        for place in ("update", "between"):
            self.come_to(place, step=step.position.step)
        sync = progress.sync
        if sync.kind == LOCAL and self.view.whole is not None and progress.steps >= sync.steps:
            field.later(busy_s, lambda: self.meetings.stop(is_end=False))
        else:
            field.later(busy_s, self.go_on)

    def _report(self, step: Round) -> None:
        field, slowest_s = self._field, float(step.compute_s.max())
        for event in worker_events(field.now, step, step.view.members, scenario=field.scenario):
            field.sink(msgspec.structs.replace(event, team=self.number))
        for rank, member in enumerate(self.members):
            compute_s = float(step.compute_s[rank])
            field.computed_s += compute_s
            member.say(
                Measured(
                    step=step.position.step,
                    view=step.view.number,
                    samples=int(step.samples[rank]),
                    compute_s=compute_s,
                    exchange_s=slowest_s - compute_s + step.exchange_s,
                    other_s=field.scenario.update_s,
                )
            )

    def come_to(self, place: str, *, step: int | None = None) -> None:
        """All members have come to a place: what waits for them there happens."""
        at = self.progress.position.step if step is None else step
        for member in self.members:
            self._field.strikes.come_to(member.life, place, step=at)
