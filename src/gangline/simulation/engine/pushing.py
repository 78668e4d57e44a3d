# SPDX-License-Identifier: Apache-2.0
"""A simulated team's updates by parameter servers: its leader pushes, waits for its turn, and pulls.

- clock: it waits to hear which update this is.
- push: the gradient goes to all shards. That of a worker alone has begun to in its backward pass.
- forward: the shards' copies get it, too.
- turn: the coordinator is told, and says when the team may go on.
- pull: the leader gets the parameters.
- share: it hands them to its team.

Where servers change meanwhile, or one does not answer, what is under way begins anew with the others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gangline.protocol.messages import END, Pushed, Unserved
from gangline.spec.serving import WORKER

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.protocol.messages import Turn
    from gangline.simulation.engine.crew import Crew
    from gangline.simulation.engine.field import Field
    from gangline.simulation.engine.member import Member
    from gangline.simulation.engine.progress import Pulled
    from gangline.spec.serving import Service, Serving


class Pushing:
    """One group's part in it."""

    def __init__(self, crew: Crew, field: Field) -> None:
        self._crew = crew
        self._field = field
        self._stage = ""
        self._pulled = crew.progress.pulled
        """Where the team stands, with what is under way."""
        self._stop = 0
        """Up to where in the team's order it is computed."""
        self._turn: Turn | None = None
        self._is_fetched = True
        self._early_s: float | None = None
        """When what is pushed began to be ready; None: it is pushed at once."""
        self._moving: Serving | None = None
        """The servers that something is on its way to, or from."""
        self._busy_until = self._said_s = 0.0
        self._is_asked = False
        self._settled = -1
        """The last round for which all waited, and before which the team pulled."""
        self._then: Callable[[Pulled], None] = lambda pulled: None

    @property
    def service(self) -> Service | None:
        """Where the team trains by parameter servers: how."""
        return None if self._crew.view.whole is None else self._crew.progress.sync.service

    @property
    def _leader(self) -> Member:
        return self._crew.members[0]

    # --- epochs ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """The team begins an epoch, or goes on with one: asks for a turn, and computes meanwhile."""
        progress = self._crew.progress
        before, epoch = progress.pulled, progress.position.epoch
        if self.service is None or before.is_begun:
            return
        pushed = before.pushed if before.epoch == epoch else 0
        progress.pulled = replace(before, epoch=epoch, is_begun=True, clock=-1, pushed=pushed)
        for member in self._crew.members:
            member.inbox.forget_turns(epoch, -1, END)
        self._ask(progress.pulled)

    def _ask(self, pulled: Pulled) -> None:
        number = self._leader.inbox.serving_number
        self._say(pulled, clock=-1, stop=pulled.pushed, serving=number)

    def is_settled(self, number: int, then: Callable[[], None]) -> bool:
        """Whether the team has what came of all pushes, before a round for which all wait.

        Else it pulls that, and `then` is called.
        """
        progress = self._crew.progress
        turn = self._leader.inbox.turn(progress.position.epoch, END)
        if self.service is None or turn is None or self._settled == number:
            return True
        if not self._stage:

            def end(pulled: Pulled) -> None:
                progress.pulled, self._settled = pulled, number
                then()

            stop = progress.pulled.pushed
            self._start("pull", progress.pulled, stop=stop, turn=turn, then=end)
        return False

    def _share_s(self) -> float:
        field, rows = self._field, self._crew.costs.rows.tolist()
        if len(rows) == 1:
            return 0.0
        return field.network.spread_s(rows, field.now, num_bytes=field.scenario.model_bytes)

    # --- updates ---------------------------------------------------------------------------------

    def update(self, stop: int, then: Callable[[Pulled], None], *, since_s: float) -> None:
        """The gradient of the samples up to `stop` is there; `then` is told where that has led.

        The backward pass, in which a worker alone pushes what is ready, began at `since_s`.
        """
        service, pulled = self.service, self._crew.progress.pulled
        assert service is not None
        if service.update == WORKER:
            pulled = replace(pulled, steps=pulled.steps + 1)
        is_fetched = pulled.steps % service.fetch == 0
        if pulled.steps % service.push == 0:
            is_early = service.update != WORKER and len(self._crew.members) == 1
            early_s = since_s if is_early and pulled.clock >= 0 else None
            self._start(
                "clock", pulled, stop=stop, then=then, is_fetched=is_fetched, early_s=early_s
            )
        elif is_fetched:
            self._start("pull", pulled, stop=pulled.pushed, then=then)
        else:
            then(pulled)

    def flush(self, then: Callable[[], None]) -> None:
        """The epoch is over for this team: what it has not pushed yet is pushed."""
        progress = self._crew.progress
        position = progress.position

        def end(pulled: Pulled) -> None:
            progress.pulled = pulled
            then()

        is_done = (
            progress.pulled.epoch != position.epoch or progress.pulled.pushed >= position.start
        )
        if self.service is None or is_done:
            then()
        else:
            self._start("clock", progress.pulled, stop=position.start, then=end)

    def _start(
        self,
        stage: str,
        pulled: Pulled,
        *,
        stop: int,
        then: Callable[[Pulled], None],
        turn: Turn | None = None,
        is_fetched: bool = True,
        early_s: float | None = None,
    ) -> None:
        self._early_s = early_s
        self._stage, self._pulled, self._stop = stage, pulled, stop
        self._then, self._turn, self._is_fetched = then, turn, is_fetched
        self._busy_until, self._is_asked = 0.0, False
        self.look()

    def look(self) -> None:
        """Goes on with what is under way, as far as can be."""
        field, leader = self._field, self._leader
        while self._stage and not self._crew.is_broken and field.now >= self._busy_until:
            if leader.life.is_hung(field.now):
                field.clock.schedule(leader.life.hung_until, self.look)
                return
            if not leader.is_able or not self._advance():
                return

    def _advance(self) -> bool:
        """Goes on to the next stage; False where it has to wait for something."""
        match self._stage:
            case "clock":
                return self._find_clock()
            case "push" | "pull":
                return self._reach_servers()
            case "forward":
                return self._forward()
            case "tell":
                return self._tell()
            case "turn":
                return self._take_turn()
            case "take":
                return self._take()
            case "share":
                return self._rest("end", self._field.now + self._share_s())
            case _:
                self._stage = ""
                self._then(self._pulled)
                return False

    def _rest(self, stage: str, until: float) -> bool:
        """Comes to a stage at a time."""
        self._stage, self._busy_until = stage, until
        if until > self._field.now:
            self._field.clock.schedule(until, self.look)
        return True

    def _find_clock(self) -> bool:
        pulled = self._pulled
        turn = self._leader.inbox.turn(pulled.epoch, -1)
        if pulled.clock < 0 and turn is None:
            if not self._is_asked:  # it may have been asked for by a leader that is no more
                self._is_asked = True
                self._ask(pulled)
            return False
        if pulled.clock < 0 and turn is not None:
            self._pulled = replace(pulled, clock=turn.clock)
        self._stage = "push"
        return True

    # --- servers ---------------------------------------------------------------------------------

    def _reach_servers(self) -> bool:
        """Pushes or pulls, as soon as all servers are there."""
        servers, leader = self._field.servers, self._leader
        serving = servers.usable(leader, self._crew.number)
        if serving is None:
            self._complain()
            servers.wait(self.look)
            return False
        leader.withdraw(Unserved)
        self._moving = serving
        if self._stage == "push":
            early_s, self._early_s = self._early_s, None  # where servers are lost, all goes again
            return self._rest("forward", servers.push_s(serving, leader.life.row, since_s=early_s))
        return self._rest("take", servers.pull_s(serving, leader.life.row))

    def _complain(self) -> None:
        """A server is gone: the coordinator is told."""
        serving = self._leader.inbox.serving
        if serving is None or serving.is_incomplete:
            return
        shard = self._field.servers.missing(serving)
        if shard >= 0:
            self._leader.say(Unserved(number=serving.number, shard=shard, error="it is gone"))

    def _has_gone(self) -> bool:
        """Whether the servers are others than when something was sent, or do not answer."""
        serving = self._field.servers.usable(self._leader, self._crew.number)
        return serving is None or self._moving is None or serving.number != self._moving.number

    def _forward(self) -> bool:
        """The shards have it, and their copies are given it."""
        if self._has_gone() or self._moving is None:
            self._stage = "push"
            return True
        return self._rest("tell", self._field.servers.forward_s(self._moving))

    def _tell(self) -> bool:
        """It is pushed: the coordinator gives it its place."""
        if self._has_gone() or self._moving is None:
            self._stage = "push"
            return True
        pulled = self._pulled
        self._leader.inbox.forget_turns(pulled.epoch, pulled.clock)
        self._said_s = self._field.now
        self._say(pulled, clock=pulled.clock, stop=self._stop, serving=self._moving.number)
        self._stage = "turn"
        return True

    def _say(self, pulled: Pulled, *, clock: int, stop: int, serving: int) -> None:
        known = self._leader.inbox.known_of(pulled.known, serving=pulled.serving)
        self._leader.say(
            Pushed(
                clock=clock,
                epoch=pulled.epoch,
                start=pulled.pushed,
                stop=stop,
                known=known,
                read=known,
                serving=serving,
            )
        )

    def _take_turn(self) -> bool:
        turn = self._leader.inbox.turn(self._pulled.epoch, self._pulled.clock)
        if turn is None:
            return False
        self._field.waited_s += self._field.now - self._said_s
        self._pulled = replace(self._pulled, clock=turn.clock, pushed=self._stop)
        self._turn = turn
        self._stage = "pull" if self._is_fetched else "share"
        return True

    def _take(self) -> bool:
        """It is pulled."""
        if self._has_gone() or self._moving is None:
            self._stage = "pull"
            return True
        leader, turn = self._leader, self._turn
        if turn is not None:
            known = leader.inbox.known_of(turn.upto, serving=turn.serving)
            self._pulled = replace(self._pulled, known=known, serving=self._moving.number)
            leader.kept = known
        self._stage = "share"
        return True
