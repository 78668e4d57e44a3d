# SPDX-License-Identifier: Apache-2.0
"""One simulated worker: its line to the coordinator, what it was told, and the group that it is in.

It says what a real worker says, and does what it is told to, under the virtual clock.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from gangline.protocol.messages import (
    BROKEN,
    PROTOCOL_VERSION,
    Dismissed,
    Failed,
    FromTeam,
    Gathered,
    Goodbye,
    Hello,
    OfTeam,
    Ping,
    Probe,
    Probed,
    Ready,
    Refused,
    Served,
    Shown,
    Stopped,
    ToTeam,
    ViewPublished,
)
from gangline.simulation.engine.inbox import Inbox
from gangline.simulation.engine.progress import Progress
from gangline.simulation.engine.switchboard import RUN
from gangline.spec.exchange.address import WireAddress

if TYPE_CHECKING:
    from gangline.protocol.messages import FromCoordinator, FromWorker
    from gangline.simulation.engine.crew import Crew
    from gangline.simulation.engine.switchboard import Switchboard
    from gangline.simulation.lives import Life
    from gangline.simulation.world import World
    from gangline.spec.view import View

PING_S = 0.5
"""A worker that has said nothing for so long says that it is there."""
SHOW_S = 1.0
"""How often a worker that was put out shows how fast it is."""


class Surroundings(Protocol):
    """What a worker asks of the job around it."""

    def attend(self, member: Member) -> None:
        """A worker was told something that it may have waited for."""

    def recall(self, member: Member) -> None:
        """A worker was told that its group is no more."""

    def bury(self, member: Member) -> None:
        """A worker's process has ended."""

    def slowdown_of(self, member: Member) -> float:
        """How many times as long as at first a worker takes."""

    def serve(self, member: Member) -> None:
        """A worker was told who holds the parameters."""

    def refuse(self, reason: str) -> None:
        """The coordinator will not have a worker."""


class Member:
    """A worker, as the coordinator and its peers know it."""

    def __init__(
        self,
        life: Life,
        ready: Ready,
        *,
        world: World,
        board: Switchboard,
        around: Surroundings,
        replaces: int = -1,
    ) -> None:
        self.life = life
        self.hello = Hello(
            protocol=PROTOCOL_VERSION,
            run=RUN,
            worker=life.worker if replaces < 0 else -1,
            host=world.nodes[life.row].name,
            pid=1 + life.worker,
            address=WireAddress(host="simulated", port=1 + life.worker % 60000),
            replaces=replaces,
        )
        self.line: int | None = None
        """Which line it has to the coordinator, counted; None: none."""
        self.standing: dict[type[FromWorker], FromWorker] = {}
        """What the coordinator must know: said again to a new one."""
        self.view: View | None = None
        """The newest view that it was told of."""
        self.is_recalled = False
        """Whether that view's group takes the place of a broken one."""
        self.inbox = Inbox()
        self.crew: Crew | None = None
        """The group that it is in."""
        self.team = self.group = -1
        """The last group that it has entered, or tried to, and that group's team."""
        self.progress = Progress(ready.sync)
        """How far it has come, while it is in no group."""
        self.asked = (-1, -1)
        """The last lease that it has asked for: epoch and number."""
        self.kept = -1
        """The first entry that is not in what it has pulled last; -1: it has pulled nothing."""
        self.is_new = True
        """Whether it has not been in a group yet."""
        self.is_gone = False
        """Whether it has left the job for good."""
        self._ready = ready
        self._world = world
        self._board = board
        self._around = around
        self._num_lines = 0
        self._greeted: int | None = None
        self._said_s = self._shown_s = 0.0

    @property
    def worker(self) -> int:
        """Its number."""
        return self.life.worker

    @property
    def is_able(self) -> bool:
        """Whether it does anything at present."""
        return self.life.is_alive and not self.life.is_hung(self._world.now) and not self.is_gone

    @property
    def is_in_step(self) -> bool:
        """Whether all workers of the job are in its group."""
        return self.crew is not None and self.crew.view.whole is None

    # --- its line --------------------------------------------------------------------------------

    def call(self) -> None:
        """Calls the coordinator, until it is there."""
        if self.line is not None or not self.life.is_alive or self.is_gone:
            return
        if not self.life.is_connected or not self._board.is_up:
            return  # who cuts it off, or starts a coordinator, has it call again
        if self.life.is_hung(self._world.now):
            self.life.when_awake.append(self.call)
            return
        self._num_lines += 1
        self.line, self.asked = self._num_lines, (-1, -1)
        self._world.later(self._world.half_s(self.life), partial(self._connect, self.line))

    def _connect(self, line: int) -> None:
        if self.line == line:
            self._greeted = line
            self._board.connect(self)

    @property
    def has_said_hello(self) -> bool:
        """Whether the coordinator has heard it by its present line."""
        return self.line is not None and self._greeted == self.line

    def hang_up(self) -> None:
        """Its line is gone."""
        if self.line is not None:
            self.line = None
            self._board.hang_up(self)

    def leave(self) -> None:
        """Its process ends with an error."""
        self.say(Goodbye(reason=BROKEN))
        self.is_gone = True
        self._world.later(2 * self._world.half_s(self.life), lambda: self._around.bury(self))

    def say(self, message: FromWorker) -> None:
        """Says something, if the line is up; what must be known is said again later."""
        if isinstance(message, OfTeam):
            message = msgspec.structs.replace(message, team=self.team)
        if isinstance(message, Ready | Failed | FromTeam):
            self.standing[type(message)] = message
        self._said_s = self._world.now
        if self.line is not None:
            self._board.carry(self, message)

    def withdraw(self, kind: type[FromWorker]) -> None:
        """What was last said of this kind does not hold any more."""
        self.standing.pop(kind, None)

    def give_signs(self) -> None:
        """Says that it is there, if it has said nothing for a while; a spare shows how fast it is."""
        now = self._world.now
        if not self.is_able or self.line is None:
            return
        if now - self._said_s >= PING_S:
            self.say(self.sign())
        if self.crew is not None or self.view is None or now - self._shown_s < SHOW_S:
            return
        if self.worker not in self.view.members:
            self._shown_s = now
            self.say(Shown(slowdown=self._around.slowdown_of(self)))

    def sign(self) -> Ping:
        """What it says to say that it is there."""
        return Ping(sent_s=self._world.now, waiting_s=self._waiting_s())

    def _waiting_s(self) -> float:
        """How long it has been in its present exchange; 0: it is in none."""
        if self.crew is None:
            lost_s = self.life.lost_group_s
            return 0.0 if lost_s is None else self._world.now - lost_s
        present = self.crew.round
        if present is None or not present.holds(self.worker):
            return 0.0
        return max(0.0, self._world.now - present.ready_of(self.worker))

    # --- what it is told -------------------------------------------------------------------------

    def receive(self, message: FromCoordinator, line: int) -> None:
        """Something has come by this line; who hangs reads it when it wakes."""
        if not self.life.is_alive or self.line != line:
            return
        if self.life.is_hung(self._world.now):
            self.life.when_awake.append(partial(self.receive, message, line))
            return
        match message:
            case Gathered(attempt=attempt) if self.view is None:
                self.say(msgspec.structs.replace(self._ready, attempt=attempt))
            case Probe(number=number, workers=workers):
                lives = self._world.lives
                reached = tuple(one for one in workers if lives[one].is_alive)
                self.say(Probed(number=number, reached=reached))
            case ViewPublished(view=view, is_recovery=is_recovery):
                self._take_view(view, is_recovery=is_recovery)
            case Dismissed() if self.crew is None:
                self.is_gone = True
            case Refused(is_left_behind=True):
                self.leave()
            case Refused(reason=reason) | Stopped(reason=reason):
                self._around.refuse(reason)
            case _ if isinstance(message, ToTeam):
                self.inbox.put(message)
                if isinstance(message, Served):
                    self._around.serve(self)
                self._around.attend(self)

    def _take_view(self, view: View, *, is_recovery: bool) -> None:
        before, self.view = self.view, view
        if before is None or view.group != before.group:
            self.is_recalled = is_recovery
        has_moved = before is not None and not _is_same_team(before, view)
        if has_moved:  # views and groups of another team have numbers of their own
            self.inbox.leave_team()
            self.group = -1
            self.withdraw(Failed)
        if has_moved or (is_recovery and view.group > self.group):
            self._around.recall(self)
        if self.crew is not None:
            self.crew.hear_view(before, view)
        self._around.attend(self)


def _is_same_team(before: View, view: View) -> bool:
    """Whether a worker is in the team that it was in; who is to part is in the one of all."""
    if before.whole is None or view.whole is None:
        return view.whole is None or view.whole.is_root
    return before.whole.team == view.whole.team
