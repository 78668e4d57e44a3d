# SPDX-License-Identifier: Apache-2.0
"""A simulated job: its workers, the coordinator of a real run, and the time in which they act."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from gangline.coordinator.inputs import Said, SyncAsked
from gangline.protocol.messages import Ready
from gangline.simulation.clock import VirtualClock
from gangline.simulation.engine.field import Extent, Field
from gangline.simulation.engine.member import PING_S, Member
from gangline.simulation.engine.switchboard import Switchboard
from gangline.simulation.lives import Life
from gangline.simulation.reporting import ended, respawned, started
from gangline.spec.sync import IN_STEP

if TYPE_CHECKING:
    from gangline.control import ControlOptions
    from gangline.simulation.course import Course
    from gangline.simulation.scenario import Scenario
    from gangline.simulation.world import Sink
    from gangline.simulation.yardstick import Yardstick
    from gangline.spec.exchange.structure import Structure
    from gangline.spec.sync import Sync

TICK_S = 0.05
"""How often the coordinator looks whether somebody is missing."""
WAIT_S = 600.0
"""How long workers wait for something to go on with, before they give up."""


def ready_for(
    scenario: Scenario,
    options: ControlOptions,
    *,
    structure: Structure | None,
    sync: Sync = IN_STEP,
) -> Ready:
    """What every worker is ready for."""
    return Ready(
        global_batch=options.global_batch,
        minimum=options.minimum,
        allocation=options.allocation,
        shares=None,
        max_samples=None,
        seed=options.seed,
        structure=structure,
        gradient_bytes=int(scenario.model_bytes),
        sync=sync,
    )


class SimulatedJob:
    """All workers, the coordinator, and what lies before them."""

    def __init__(
        self,
        scenario: Scenario,
        ready: Ready,
        *,
        options: ControlOptions,
        course: Course,
        extent: Extent,
        seed: int,
        sink: Sink,
        yardstick: Yardstick | None = None,
    ) -> None:
        """With a `yardstick` all workers are in step, and stay so.

        Then the coordinator need not look about while all is well: it would find nothing to do.
        """
        self.problem: str | None = None
        """Why the job ended early."""
        self._scenario = scenario
        self._ready = ready
        self._course = course
        self._respawns_left = course.respawns
        self._num_coming = 0
        self._may_rest = yardstick is not None
        self._is_looking = self._is_over = False
        self._sink = sink
        self._clock = VirtualClock()
        count = len(scenario.worker_nodes)
        marked = {fault.worker for fault in course.faults.faults}
        lives = [
            Life(one, row=one, faults=course.faults.of(one) if one in marked else ())
            for one in range(count)
        ]
        self.field = Field(
            scenario,
            lives,
            clock=self._clock,
            sink=sink,
            options=options,
            course=course,
            extent=extent,
            seed=seed,
            yardstick=yardstick,
        )
        self.board = Switchboard(
            self.field,
            workers=count,
            options=options,
            lease_scheme=course.lease_scheme,
            refuse=self._end,
            on_group=self._look_about,
        )
        self.field.attach(
            self.board, end=self._end, look_about=self._look_about, respawn=self._respawn
        )
        for life in lives:
            self._admit(life)

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._clock.now

    def run(self) -> None:
        """Runs to the end."""
        self._sink(started(0.0, nodes=self._scenario.worker_nodes))
        self._clock.schedule(0.0, self.board.begin)
        for switch in self._course.switches:
            self._clock.schedule(switch.at_s, partial(self.board.hand, SyncAsked(sync=switch.sync)))
        for outage in self._course.outages:
            self._clock.schedule(outage.at_s, self._lose_coordinator)
            self._clock.schedule(outage.at_s + outage.for_s, self.board.begin)
        if not self._may_rest:
            self._look_about()
        self._clock.run()
        self._sink(ended(self.now, steps=self.field.position.step, problem=self.problem))

    # --- workers ---------------------------------------------------------------------------------

    def _admit(self, life: Life, *, replaces: int = -1) -> None:
        ceiling = self.field.nodes[life.row].max_samples
        life.lost_group_s = self.now
        self.field.everybody[life.worker] = self.board.members[life.worker] = Member(
            life,
            msgspec.structs.replace(self._ready, max_samples=ceiling),
            world=self.field,
            board=self.board,
            around=self.field,
            replaces=replaces,
        )

    def _respawn(self, dead: Life) -> None:
        if self._respawns_left:
            self._respawns_left -= 1
            self._num_coming += 1
            self.field.later(self._scenario.respawn_s, partial(self._come, dead))

    def _come(self, dead: Life) -> None:
        self._num_coming -= 1
        self.field.progress_s = self.now
        life = Life(len(self.field.lives), row=dead.row)
        self.field.lives.append(life)
        self._sink(respawned(self.now, life, dead, left=self._respawns_left))
        self._admit(life, replaces=dead.worker)
        self.field.everybody[life.worker].call()

    def _lose_coordinator(self) -> None:
        self._look_about()
        self.board.kill()

    # --- time ------------------------------------------------------------------------------------

    def _look_about(self) -> None:
        """From now on the coordinator looks about, and workers say that they are there."""
        if self._is_looking:
            return
        self._is_looking = True
        if self._may_rest:  # they have said so all along
            for member in self.field.everybody.values():
                if member.is_able and member.has_said_hello:
                    self.board.hand(Said(worker=member.worker, message=member.sign()))
        self._clock.schedule(self.now + TICK_S, self._tick, priority=1)

    def _tick(self) -> None:
        field = self.field
        self.board.tick()
        for member in self._speakers():
            member.give_signs()
        if self._is_over:
            return
        if not self._num_coming and not any(life.is_alive for life in field.lives):
            self._end("no worker is left")
        elif self.now - field.progress_s > WAIT_S and not self._is_moving():
            self._end(f"nothing has gone on for {WAIT_S:.0f} s")
        elif self._may_rest and self._is_all_well():
            self._is_looking = False
        else:
            self._clock.schedule(self.now + TICK_S, self._tick, priority=1)

    def _speakers(self) -> list[Member]:
        """Who may have something to say: not who has just reported a step together with others."""
        crews = {member.crew for member in self.field.everybody.values() if member.crew}
        heard = {crew for crew in crews if self.now - crew.telling.told_s < PING_S}
        return [
            member
            for member in self.field.everybody.values()
            if member.life.is_marked or member.crew not in heard
        ]

    def _is_moving(self) -> bool:
        """Whether somebody will wake, come back, or be done with computing by itself."""
        crews = {member.crew for member in self.field.everybody.values()}
        rounds = [crew.round for crew in crews if crew is not None]
        if any(one is not None and one.is_awaited(self.now) for one in rounds):
            return True
        return any(
            life.is_alive and self.now < max(life.hung_until, life.cut_until)
            for life in self.field.lives
        )

    def _is_all_well(self) -> bool:
        """Whether everybody alive is in the newest group, and heard."""
        views, everybody = self.board.views, self.field.everybody
        if not self.board.is_up or self._num_coming or not views:
            return False
        newest = views[-1]
        crew = everybody[newest.members[0]].crew
        if crew is None or crew.is_broken or crew.view.group != newest.group:
            return False
        # Who is alive and not a member was put out, or is new, and will ask to be let in.
        num_alive = sum(life.is_alive for life in self.field.lives)
        is_whole = num_alive == len(crew.members)
        odd = crew.odd.values()
        return is_whole and all(one.life.is_well(self.now) and one.line is not None for one in odd)

    def _end(self, problem: str | None) -> None:
        self.problem, self._is_over = problem, True
        self._clock.stop()
