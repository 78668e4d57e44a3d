# SPDX-License-Identifier: Apache-2.0
"""Leads one simulated team from step to step, at its own pace, and to its meetings with the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.control import StepMeasured
from gangline.planning.allocation.ragged import cut_shares
from gangline.simulation.course import Position
from gangline.simulation.in_step.rounds import Round
from gangline.simulation.reporting import epoch_event, worker_events
from gangline.simulation.teams.losses import Losses
from gangline.simulation.teams.merging import Closing, OpenRound, Part
from gangline.simulation.teams.team import view_of
from gangline.spec.sync import LOCAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.control.sync.rounds import Report
    from gangline.simulation.network import Network
    from gangline.simulation.teams.federation import Federation
    from gangline.simulation.teams.team import Team
    from gangline.simulation.workers import SimulatedWorkers
    from gangline.spec.faults import FaultPlan


class Pace:
    """What a team is at: a step, a wait for the other teams, or a new group of its own."""

    def __init__(
        self,
        team: Team,
        federation: Federation,
        network: Network,
        *,
        workers: SimulatedWorkers,
        rng: np.random.Generator,
        plan: FaultPlan,
    ) -> None:
        self.team = team
        self.losses = Losses(team, federation, plan=plan, go_on=self._go_on_anew)
        self._world = team.world
        self._federation = federation
        self._network = network
        self._workers = workers
        self._rng = rng
        self._sync = federation.rounds.sync
        self._part = Part(
            team.number, team.world.scenario, spread_s=self._spread_s, tell_held=self._tell_held
        )
        self._waits_since: float | None = None
        self._is_end = False
        self._is_reached = False
        self._busy_until = 0.0

    def attach(self, *, length: int, epochs: int, finish: Callable[[], None]) -> None:
        """How far the team has to go, and who wants to know when it is there."""
        self._length = length
        self._epochs = epochs
        self._finish = finish

    # --- steps -----------------------------------------------------------------------------------

    def go_on(self) -> None:
        """The team does what comes next."""
        team, world = self.team, self._world
        if team.is_lost or self.losses.is_regrouping:
            return
        team.adopt(is_now=False)
        position = world.position
        late_s = self._ask(position.start + team.batch)
        stop = min(position.start + view_of(team).global_batch, team.order.given)
        if stop == position.start:
            self._stop(is_end=True)
        else:
            self._begin_step(stop, late_s)

    def _ask(self, stop: int) -> float:
        """Has the team's order go as far as `stop`, if it can; how long that takes."""
        team, epoch, late_s = self.team, self._world.position.epoch, 0.0
        while team.order.given < stop:
            number = len(team.order)
            late_s += 0.0 if number < team.num_asked else 2 * team.latency_s
            lease = self._federation.grant(team, number, epoch=epoch, length=self._length)
            if lease.start == lease.stop:
                team.num_asked = number
                break
            team.order.append(lease)
            self._federation.grant(team, number + 1, epoch=epoch, length=self._length)
            team.num_asked = number + 2
        return late_s

    def _begin_step(self, stop: int, late_s: float) -> None:
        team, world = self.team, self._world
        view, position = view_of(team), world.position
        parts = cut_shares(
            stop - position.start, view.shares, minimum=max(1, team.state.options.minimum)
        )
        samples = np.array(parts, dtype=np.int64)
        compute_s = team.compute_s(samples, workers=self._workers, rng=self._rng)
        step = Round(view, position, started_s=world.now + late_s, compute_s=compute_s)
        step.samples = samples
        step.after = Position(step=position.step + 1, epoch=position.epoch, start=stop)
        world.round = step
        for life in team.lives:
            if not life.is_alive:
                step.lose(life.worker)
            elif life.is_hung(world.now):
                step.delay(life.worker, until=life.hung_until, now=world.now)
        self._schedule_ready(step)
        for life in team.lives:
            if life.has_faults:
                self.losses.strikes.approach(step, life)

    def _schedule_ready(self, step: Round) -> None:
        ready_s = float(step.ready_s.max())
        if ready_s < float("inf"):
            self._world.clock.schedule(ready_s, lambda: self._ready(step), priority=1)

    def _ready(self, step: Round) -> None:
        """All members have computed: they exchange, and agree on what they know."""
        world, team = self._world, self.team
        if self._world.round is not step or step.is_broken or team.is_lost:
            return
        if world.now < float(step.ready_s.max()):
            self._schedule_ready(step)  # somebody was held up
            return
        stage = self._part.look(world.now)
        if len(team.members) > 1:
            num_bytes = world.scenario.model_bytes
            took_s = self._network.group_s([team.rows], world.now, num_bytes=num_bytes)
            step.exchange_s = world.scenario.exchange_s + took_s
        world.later(step.exchange_s + world.scenario.update_s, lambda: self._end_step(step, stage))

    def _end_step(self, step: Round, stage: str) -> None:
        world, team = self._world, self.team
        if world.round is not step or step.is_broken or team.is_lost:
            return
        awake_s = max(life.hung_until for life in team.lives)
        if awake_s > world.now:
            world.clock.schedule(awake_s, lambda: self._end_step(step, stage))
            return
        step.is_over, world.round = True, None
        world.position, world.progress_s = step.after, world.now
        self._report(step)
        busy_s = self._advance(stage)
        team.steps_since_stop += 1
        for place in ("update", "between"):
            for life in team.lives:
                self.losses.strikes.come_to(life, place, step=step.position.step)
        if self.losses.is_regrouping:
            return
        is_local = self._sync.kind == LOCAL and team.steps_since_stop >= self._sync.steps
        turn = self.losses.turn
        world.later(busy_s, lambda: self._after_step(turn, is_local=is_local))

    def _after_step(self, turn: int, *, is_local: bool) -> None:
        if turn != self.losses.turn:
            return
        if is_local:
            self._stop(is_end=False)
        else:
            self.go_on()

    def _report(self, step: Round) -> None:
        world, team = self._world, self.team
        for event in worker_events(world.now, step, team.members, scenario=world.scenario):
            world.sink(msgspec.structs.replace(event, team=team.number))
        team.computed_s += float(step.compute_s.sum())
        team.tell(
            StepMeasured(
                step=step.position.step,
                view=step.view.number,
                workers=step.view.members,
                samples=step.samples,
                compute_s=step.compute_s,
                exchange_s=step.exchange_s,
                step_s=world.now - step.started_s,
            )
        )
        count = int(step.samples.sum())
        world.later(team.latency_s, lambda: self._federation.note(count))

    def _advance(self, stage: str) -> float:
        """Beside the training: the team goes on to the next stage of a merge; what that takes."""
        match stage:
            case "begin" if self._part.has_news:
                return self._begin_part()
            case "share":
                return self._part.share()
            case "tell":
                self._part.tell()
            case "end":
                self._sync = self._part.end().sync
        return 0.0

    def _go_on_anew(self) -> None:
        """The members that are left are a new group."""
        if self._waits_since is None:
            self.go_on()
        else:
            self.look()

    # --- meetings --------------------------------------------------------------------------------

    def _begin_part(self) -> float:
        opened, busy_s = self._part.begin(self._world.position.start)
        self._world.later(busy_s, lambda: self._bring(opened))
        return busy_s

    def _bring(self, opened: OpenRound) -> None:
        is_stale = self.team.is_lost or self._part.opened is not opened
        if not is_stale and opened.bring(self.team.number, self._world.now):
            self._federation.announce()

    def _stop(self, *, is_end: bool) -> None:
        """Stops until all teams are merged."""
        world = self._world
        if self.team.is_lost or self.losses.is_regrouping:
            return
        self._waits_since, self._is_end, self._is_reached = world.now, is_end, False
        if is_end:
            for place in ("end", "call"):
                for life in self.team.lives:
                    self.losses.strikes.come_to(life, place, step=world.position.step)
        self.look()

    def look(self) -> None:
        """While it waits: does what can be done for the merge under way, and for the next."""
        if self._waits_since is None or self.team.is_lost or self.losses.is_regrouping:
            return
        world = self._world
        if self._busy_until > world.now:
            return  # it looks again then
        hung_until = max(life.hung_until for life in self.team.lives)
        if hung_until > world.now:
            world.clock.schedule(hung_until, self.look)
            return
        part = self._part
        if part.opened is None and part.has_news:
            self._begin_part()
        elif part.opened is None:
            self._reach()
        elif part.is_over:
            self._take(part.opened, part.end())
        else:
            self._push(part.opened)

    def _reach(self) -> None:
        if not self._is_reached:
            self._is_reached = True
            team, is_end = self.team, self._is_end
            self._world.later(team.latency_s, lambda: self._federation.reach(team, is_end=is_end))

    def _push(self, opened: OpenRound) -> None:
        """Everybody in the team waits for this round."""
        world, stage = self._world, self._part.look(self._world.now)
        arrived_s = opened.arrived_s.get(self.team.number)
        if stage == "share":
            self._busy_until = world.now + self._part.share()
            world.clock.schedule(self._busy_until, self.look)
        elif stage == "tell":
            self._part.tell()
        elif arrived_s is not None and arrived_s > world.now:
            world.clock.schedule(arrived_s, self.look)

    def _take(self, opened: OpenRound, closing: Closing) -> None:
        self._sync = closing.sync
        if closing.is_committed and opened.control.is_whole and not self._is_end:
            self._resume()
        else:
            self.look()

    def _resume(self) -> None:
        assert self._waits_since is not None
        self.team.waited_s += self._world.now - self._waits_since
        self._waits_since = None
        self.team.steps_since_stop = 0
        self.go_on()

    # --- what the coordinator says ---------------------------------------------------------------

    def hear_opened(self, opened: OpenRound) -> None:
        """A round was opened."""

        def arrive() -> None:
            self._part.news = opened
            self.look()

        self._world.later(self.team.latency_s, arrive)

    def hear_arriving(self) -> None:
        """It is known when the mean will be there: for who waits for it."""
        self.look()

    def hear_closed(self, closing: Closing) -> None:
        """A round was closed."""

        def arrive() -> None:
            self._part.closed = closing
            self.look()

        self._world.later(self.team.latency_s, arrive)

    def hear_epoch(self, *, is_complete: bool) -> None:
        """All teams have come to the end of the epoch; where samples are left, it goes on."""
        self._world.clock.schedule(
            self._world.now + self.team.latency_s,
            lambda: self._end_epoch(is_complete=is_complete),
            priority=1,  # behind the end of its last round
        )

    def _end_epoch(self, *, is_complete: bool) -> None:
        world, team = self._world, self.team
        if team.is_lost:
            return
        position = world.position
        if is_complete:
            for worker in team.members:
                event = epoch_event(world.now, worker, position)
                world.sink(msgspec.structs.replace(event, team=team.number))
            world.position = Position(step=position.step, epoch=position.epoch + 1)
            team.begin_epoch()
        if world.position.epoch >= self._epochs:
            self._finish()
        else:
            self._resume()

    def hear_lost(self) -> None:
        """The team was given up."""
        self.team.is_lost, self._world.round = True, None

    def _spread_s(self, num_bytes: float) -> float:
        return self._network.spread_s(self.team.rows, self._world.now, num_bytes=num_bytes)

    def _tell_held(self, number: int, report: Report) -> None:
        team = self.team
        self._world.later(team.latency_s, lambda: self._federation.receive(team, number, report))
