# SPDX-License-Identifier: Apache-2.0
"""The order in which the parameter servers apply what teams have pushed.

A team pushes its gradient to the servers, where it is kept aside, and tells the coordinator. That gives
the update its place in one sequence, writes it down, and with that its samples count. The servers
learn the sequence from whoever pulls. So all of them go through the same updates, whichever dies, and a
push that never got a place is forgotten.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gangline.coordinator.kept.records import Applied, Serves, TeamLost, TeamsFounded, Voided
from gangline.paramserver.clocks import Clocks, Fate
from gangline.protocol.messages import END, Pushed, Turn
from gangline.spec.errors import UsageError
from gangline.spec.serving import NOBODY, SHARE, Entry, Part, Serving

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gangline.coordinator.kept.records import AnyRecord
    from gangline.coordinator.teams.lending import Lending
    from gangline.paramserver.clocks import Closed
    from gangline.spec.serving import Service

KEPT_ENTRIES = 4096
"""So many entries are remembered for who is behind. Each team is told all when it goes on."""


class Span(NamedTuple):
    """A part of a team's own order of an epoch."""

    team: int
    epoch: int
    start: int
    stop: int


class Counted(NamedTuple):
    """What was pushed so far."""

    samples: int = 0
    weight: float = 0.0

    @property
    def mean(self) -> float:
        """What a sample counts."""
        return self.weight / max(self.samples, 1)


class UpdateSequence:
    """Gives each push its place, and each team its turn."""

    def __init__(self, service: Service, lending: Lending, *, global_batch: int) -> None:
        self._service = service
        self._lending = lending
        self.global_batch = global_batch
        """One step of all teams."""
        self._clocks: Clocks | None = None
        self._waiting: dict[int, Pushed] = {}
        """What teams have said that wait for their turn."""
        self._held: dict[int, Pushed] = {}
        """What teams have pushed in the present round."""
        self._answered: dict[int, int] = {}
        """By team: the clock of the last push that has a fate."""
        self._entries: list[Entry] = []
        self._spans: dict[int, list[Span]] = {}
        """By entry: the samples that it was computed from."""
        self._stops: dict[tuple[int, int], int] = {}
        """By team and epoch: up to where in the team's order everything has a place."""
        self._counted = Counted()
        self.upto = 0
        """The number of the next entry."""

    def slowest(self) -> tuple[int, ...]:
        """Whom others wait for, where somebody waits."""
        return self._clocks.slowest() if self._clocks is not None and self._waiting else ()

    def follow(self, teams: Iterable[int]) -> None:
        """These teams train: who is new joins, who is gone has left."""
        numbers = list(teams)
        if self._clocks is None:
            self._clocks = Clocks(self._service.consistency, numbers)
            return
        for team in numbers:
            if team not in self._clocks.known:
                self._clocks.join(team)
        for team in set(self._clocks.known) - set(numbers):
            self._waiting.pop(team, None)
            self._held.pop(team, None)  # its samples are free again
            self._close(self._clocks.leave(team, is_void=True))

    def push(self, pushed: Pushed) -> None:
        """A team has pushed an update, or asks for its first turn. Raises UsageError for it to read."""
        assert self._clocks is not None
        team = pushed.team
        if pushed.clock >= 0 and self._answered.get(team, -1) < pushed.clock:
            self._place(pushed)
        elif pushed.clock < 0:
            self._begin(team)
        self._waiting[team] = pushed

    def _begin(self, team: int) -> None:
        """A team begins an epoch, and with it all do: who has yet to say so is waited for."""
        assert self._clocks is not None
        is_first = not self._clocks.active
        for one in self._clocks.known if is_first else (team,):
            self._clocks.resume(one)

    def _place(self, pushed: Pushed) -> None:
        """Decides what becomes of an update that was not heard of before."""
        assert self._clocks is not None
        team = pushed.team
        if pushed.stop < pushed.start or pushed.stop > self._lending.book.order_of(team).given:
            raise UsageError(
                f"Pushed with samples {pushed.start} to {pushed.stop}: team {team} was given "
                f"{self._lending.book.order_of(team).given} of epoch {self._lending.book.epoch}"
            )
        if not 0 <= pushed.skipped <= pushed.stop - pushed.start:
            raise UsageError(
                f"Pushed with skipped = {pushed.skipped}, of samples {pushed.start} to {pushed.stop}"
            )
        if pushed.weight is not None and not 0 <= pushed.weight < math.inf:
            raise UsageError(
                f"Pushed with weight = {pushed.weight}: what prepare(weight=) says of a batch must be "
                "0 or more, and finite"
            )
        self._clocks.take_up(team, pushed.clock)
        arrival = self._clocks.arrive(team, pushed.clock)
        self._answered[team] = pushed.clock
        match arrival.fate:
            case Fate.APPLIED:
                self._apply([pushed], staleness=max(0, self.upto - pushed.read))
            case Fate.HELD:
                self._held[team] = pushed
                self._close(arrival.closed)
            case Fate.LATE:
                self._void(_span_of(pushed), clock=pushed.clock, late_by=arrival.late_by)
            case Fate.DUPLICATE | Fate.GONE:
                pass

    def _void(self, span: Span, *, clock: int = -1, late_by: int = 0) -> None:
        """These samples count nothing, though they were computed."""
        team, epoch, start, stop = span
        self._stops[team, epoch] = max(stop, self._stops.get((team, epoch), 0))
        self._lending.void(
            Voided(team=team, epoch=epoch, start=start, stop=stop, clock=clock, late_by=late_by)
        )

    def forget(self, pushed: Pushed) -> None:
        """A push went to servers that have been lost since, with it: the team computes another one."""
        span = _span_of(pushed)
        if span.stop > self._stops.get((span.team, span.epoch), 0):
            self._void(span)
        self._waiting[pushed.team] = pushed

    def rewind(self, upto: int) -> int:
        """The servers go back to before this entry: what came since is void. How many samples are."""
        assert self._clocks is not None
        held = [_span_of(self._held.pop(team)) for team in self._clocks.void_round()]
        for team, *_ in held:
            self._answered.pop(team, None)
        lost = [one for number, spans in self._spans.items() if number >= upto for one in spans]
        present = self._lending.book.epoch
        for span in (*lost, *held):
            if span.epoch == present:
                self._void(span)
        self._cut(upto)
        self._waiting = {team: gone_back(one, upto) for team, one in self._waiting.items()}
        return sum(span.stop - span.start for span in (*lost, *held))

    def _cut(self, upto: int) -> None:
        self._entries = [one for one in self._entries if one.number < upto]
        self._spans = {number: one for number, one in self._spans.items() if number < upto}
        self.upto = upto

    def _close(self, closed: Closed | None) -> None:
        """A round is complete: what was pushed in it is one update."""
        if closed is not None:
            self._apply([self._held.pop(team) for team in closed.workers], staleness=0)

    def _apply(self, pushes: Sequence[Pushed], *, staleness: int) -> None:
        parts = tuple(
            Part(push.team, push.clock, weight)
            for push, weight in zip(pushes, self._weights(pushes), strict=True)
        )
        applied = Applied(
            entry=Entry(self.upto, parts, staleness),
            epoch=pushes[0].epoch,
            offsets={push.team: push.stop for push in pushes},
        )
        self._keep(applied)
        self._lending.apply(applied)

    def _weights(self, pushes: Sequence[Pushed]) -> list[float]:
        """How much each of these counts in one update."""
        samples = [push.stop - push.start - push.skipped for push in pushes]
        if pushes[0].is_sum:
            return [1.0 if count else 0.0 for count in samples]
        counts = [
            float(count) if push.weight is None else push.weight
            for push, count in zip(pushes, samples, strict=True)
        ]
        self._counted = Counted(
            self._counted.samples + sum(samples), self._counted.weight + sum(counts)
        )
        total = sum(counts)
        if not self._service.consistency.has_rounds and self._service.scale == SHARE:
            # A weight is compared with what a global batch has counted so far.
            usual = 1.0 if pushes[0].weight is None else self._counted.mean
            total = self.global_batch * self._service.push * usual
        return [count / total if total else 0.0 for count in counts]

    def _keep(self, applied: Applied) -> None:
        entry, epoch = applied.entry, applied.epoch
        self._entries.append(entry)
        if len(self._entries) > 2 * KEPT_ENTRIES:
            self._entries = self._entries[-KEPT_ENTRIES:]
            first = self._entries[0].number
            self._spans = {number: one for number, one in self._spans.items() if number >= first}
        self._spans[entry.number] = [
            Span(team, epoch, self._stops.get((team, epoch), 0), stop)
            for team, stop in applied.offsets.items()
        ]
        if any(one != epoch for _, one in self._stops):
            self._stops.clear()
        self._stops |= {(team, epoch): stop for team, stop in applied.offsets.items()}
        self.upto = entry.number + 1

    def finish(self, team: int) -> None:
        """A team has come to the end of the epoch: nobody waits for it."""
        assert self._clocks is not None
        self._waiting.pop(team, None)
        if team in self._clocks.known:
            self._close(self._clocks.finish(team))

    def take_turns(self, serving: int) -> dict[int, Turn]:
        """Those that waited and may go on now, and what each is told."""
        if self._clocks is None:
            return {}
        turns = {}
        for team, pushed in list(self._waiting.items()):
            if team not in self._clocks.known or not self._clocks.may_begin(team):
                continue
            del self._waiting[team]
            turns[team] = Turn(
                clock=self._clocks.begin(team),
                upto=self.upto,
                entries=self._since(pushed.known),
                serving=serving,
                epoch=pushed.epoch,
                pushed=pushed.clock,
                team=team,
            )
        return turns

    def last_turn(self, team: int, known: int, serving: int, *, takes_state: bool) -> Turn:
        """What a team pulls at the end of an epoch, that was told up to `known`."""
        return Turn(
            clock=-1,
            upto=self.upto,
            entries=self._since(known),
            serving=serving,
            epoch=self._lending.book.epoch,
            pushed=END,
            takes_state=takes_state,
            team=team,
        )

    def _since(self, known: int) -> tuple[Entry, ...]:
        first = bisect_left(self._entries, known, key=lambda one: one.number)
        return tuple(self._entries[first:])

    def replay(self, records: Sequence[AnyRecord], teams: Iterable[int]) -> None:
        """Goes on where the coordinator of before was killed; teams say again what they pushed.

        `teams` are those that were founded. What there was before they were is not theirs.
        """
        founded = max(
            (i for i, one in enumerate(records) if isinstance(one, TeamsFounded)), default=-1
        )
        clocks = self._clocks = Clocks(self._service.consistency, teams)
        for record in records[founded + 1 :]:
            match record:
                case Serves(serving=Serving(source=source, applied=upto)) if source != NOBODY:
                    self._cut(upto)
                case Applied(entry=entry):
                    self._keep(record)
                    for part in entry.parts:
                        clocks.recall(part.team, part.clock, Fate.APPLIED)
                        self._answered[part.team] = part.clock
                case Voided(team=team, clock=clock) if clock >= 0:
                    clocks.recall(team, clock, Fate.LATE)
                    self._answered[team] = clock
                case TeamLost(team=team) if team in clocks.known:
                    clocks.leave(team)


def gone_back(pushed: Pushed, upto: int) -> Pushed:
    """The same, of a team that has gone back to before this entry."""
    return msgspec.structs.replace(
        pushed, known=min(pushed.known, upto), read=min(pushed.read, upto)
    )


def _span_of(pushed: Pushed) -> Span:
    return Span(pushed.team, pushed.epoch, pushed.start, pushed.stop)
