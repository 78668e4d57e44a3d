# SPDX-License-Identifier: Apache-2.0
"""The parameter servers of a simulated job: what each worker holds, and what asking them takes.

What is sent goes over the scenario's links, behind whatever else its servers and senders are sending
and receiving. Servers that are dead, hang, or have not heard of their part do not answer.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from gangline.protocol.messages import Holds, Unserved
from gangline.spec.serving import NOBODY

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.simulation.engine.field import Field
    from gangline.simulation.engine.member import Member
    from gangline.spec.serving import Serving, ShardPlace


UNIT_BYTES = 4 << 20
"""Gradients are pushed in units of this size."""


class Servers:
    """Follows who holds which shard, for all workers."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self._first: dict[tuple[int, ...], int] = {}
        """By the teams that were founded with it: the first order of servers."""
        self._held: dict[int, set[int]] = {}
        """By worker: the shards that it has all of."""
        self._copying: dict[tuple[int, int], int] = {}
        """By shard and worker that gets a copy: whose."""
        self._restored: set[int] = set()
        """Orders of servers with which all went back, and all shards have what they went back to."""
        self._blocked: list[Callable[[], None]] = []

    # --- whom to ask -----------------------------------------------------------------------------

    def usable(self, asker: Member, team: int) -> Serving | None:
        """The servers that a worker knows of, if all of them would answer it now."""
        serving = asker.inbox.serving
        if serving is None or team not in serving.teams or serving.is_incomplete:
            return None
        if serving.source != NOBODY and serving.number not in self._restored:
            return None
        is_there = all(
            self._answers(worker, serving) for place in serving.shards for worker in _holders(place)
        )
        return serving if is_there else None

    def _answers(self, worker: int, serving: Serving) -> bool:
        member = self._field.everybody[worker]
        return member.is_able and member.inbox.serving_number >= serving.number

    def missing(self, serving: Serving) -> int:
        """The first shard whose worker is dead; -1: there is none."""
        lives = self._field.lives
        dead = [
            number
            for number, place in enumerate(serving.shards)
            if not all(lives[worker].is_alive for worker in _holders(place))
        ]
        return dead[0] if dead else -1

    def wait(self, look: Callable[[], None]) -> None:
        """Has `look` called when something has changed about the servers."""
        self._blocked.append(look)

    def tell(self) -> None:
        """Something has changed about the servers: those look that wait for it."""
        blocked, self._blocked = self._blocked, []
        for look in blocked:
            self._field.later(0.0, look)

    # --- what asking takes -----------------------------------------------------------------------

    def push_s(self, serving: Serving, row: int, *, since_s: float | None = None) -> float:
        """When all shards have what a worker pushes; all but its last unit was ready by and by.

        Of that, the first was ready at `since_s`. None: all of it is pushed now.
        """

        def ends(place: ShardPlace) -> tuple[int, int]:
            return row, self._row(place.primary)

        if since_s is None:
            return self._last_s(serving, ends)
        last = 1 / math.ceil(max(1.0, self._field.scenario.model_bytes / UNIT_BYTES))
        early_s = self._last_s(serving, ends, from_s=since_s, part=1 - last)
        return max(early_s, self._last_s(serving, ends, part=last))

    def forward_s(self, serving: Serving) -> float:
        """When all copies have what was pushed."""
        return self._last_s(
            serving,
            lambda place: (
                self._row(place.primary),
                self._row(place.primary if place.replica == NOBODY else place.replica),
            ),
        )

    def pull_s(self, serving: Serving, row: int) -> float:
        """When a worker has what it pulls now."""
        return self._last_s(serving, lambda place: (self._row(place.primary), row))

    def _last_s(
        self,
        serving: Serving,
        ends: Callable[[ShardPlace], tuple[int, int]],
        *,
        from_s: float | None = None,
        part: float = 1.0,
    ) -> float:
        field = self._field
        num_bytes = field.scenario.model_bytes * part
        sent_s = field.now if from_s is None else from_s
        return max(
            field.network.deliver_s(
                *ends(place), sent_s, num_bytes=num_bytes * _part(serving, number)
            )
            for number, place in enumerate(serving.shards)
        )

    def _row(self, worker: int) -> int:
        return self._field.lives[worker].row

    # --- who holds what --------------------------------------------------------------------------

    def follow(self, member: Member) -> None:
        """A worker was told who holds the parameters: it plays its part."""
        serving = member.inbox.serving
        if serving is None:
            return
        first = self._first.setdefault(serving.teams, serving.number)
        own = {n for n, place in enumerate(serving.shards) if member.worker in _holders(place)}
        primary = {n for n in own if serving.shards[n].primary == member.worker}
        # All begin with the same parameters. Who goes back has what it is given then.
        before = own if serving.number == first else self._held.get(member.worker, set())
        kept = set() if serving.source != NOBODY else before
        self._held[member.worker] = (kept & own) | primary
        if serving.is_incomplete:
            member.say(Unserved(number=serving.number, known=member.kept))
        elif serving.source == member.worker:
            self._restore(serving, member)
        elif serving.source == NOBODY or serving.number in self._restored:
            for number in sorted(own - self._held[member.worker]):
                self._copy(number, member)
        self._tell_held(member)
        self.tell()

    def _tell_held(self, member: Member) -> None:
        held = tuple(sorted(self._held[member.worker]))
        member.say(Holds(number=member.inbox.serving_number, shards=held))

    def _restore(self, serving: Serving, source: Member) -> None:
        """All shards get what one worker has kept of its last pull."""

        def end() -> None:
            if not source.is_able or source.inbox.serving_number != serving.number:
                return  # others are told of another source, or of other servers
            self._restored.add(serving.number)
            for number, place in enumerate(serving.shards):
                if place.replica != NOBODY:
                    self._copy(number, self._field.everybody[place.replica])
            self.tell()

        self._field.clock.schedule(self.push_s(serving, source.life.row), end)

    def _copy(self, number: int, member: Member) -> None:
        """A worker gets the copy of a shard from who serves it."""
        serving, field = member.inbox.serving, self._field
        if serving is None or member.worker != serving.shards[number].replica:
            return
        primary = serving.shards[number].primary
        if self._copying.get((number, member.worker)) == primary:
            return  # it is on its way
        self._copying[number, member.worker] = primary
        scenario = field.scenario
        num_bytes = (scenario.whole_bytes or scenario.model_bytes) * _part(serving, number)
        rows = (self._row(primary), member.life.row)
        at_s = field.network.deliver_s(*rows, field.now, num_bytes=num_bytes)
        since = serving.number
        field.clock.schedule(at_s, partial(self._end_copy, number, member, primary, since))

    def _end_copy(self, number: int, member: Member, primary: int, since: int) -> None:
        field = self._field
        hung_s = max(field.lives[primary].hung_until, member.life.hung_until)
        if hung_s > field.now:
            field.clock.schedule(hung_s, partial(self._end_copy, number, member, primary, since))
            return
        self._copying.pop((number, member.worker), None)
        serving = member.inbox.serving
        if serving is None or not (member.is_able and field.lives[primary].is_alive):
            return
        place = serving.shards[number] if number < len(serving.shards) else None
        has_changed = serving.number != since and serving.source != NOBODY
        if (
            place is None
            or has_changed
            or (place.primary, place.replica) != (primary, member.worker)
        ):
            return
        self._held[member.worker].add(number)
        self._tell_held(member)


def _holders(place: ShardPlace) -> list[int]:
    return [worker for worker in (place.primary, place.replica) if worker != NOBODY]


def _part(serving: Serving, number: int) -> float:
    """How much of the model a shard is."""
    return serving.shards[number].weight / sum(place.weight for place in serving.shards)
