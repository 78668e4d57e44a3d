# SPDX-License-Identifier: Apache-2.0
"""Which teams are merged with each other, and when: a scope for each relaxed level's groups.

A structure of sites and racks has a scope for the teams of each site, which are merged often, and one
for all teams, which are merged rarely. A team takes part in one round at a time. Where a scope is due
whose teams are in another one's round, that one is waited for, and none is opened before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.control.sync.rounds import Round, RoundClock
from gangline.protocol.messages import RoundClosed, RoundOpened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gangline.coordinator.kept.records import Merged
    from gangline.coordinator.teams.team import Team
    from gangline.protocol.messages import Hello, Reached
    from gangline.spec.sync import Sync


class Scope:
    """Teams that are merged with each other: those of one group, or all."""

    def __init__(
        self, level: int, teams: Iterable[int], clock: RoundClock, *, compression: str = "none"
    ) -> None:
        self.level = level
        """Counted from the lowest relaxed one."""
        self.teams = frozenset(teams)
        self.clock = clock
        self.round: Round | None = None
        self.is_wanted = False
        """Whether a round is to be opened though none is due."""
        self.closed: list[RoundClosed] = []
        """How the last rounds ended."""
        self._compression = compression
        self._leaders: tuple[int, ...] = ()
        self._group = -1

    @property
    def leaders(self) -> tuple[int, ...]:
        """Who exchanges in the present round."""
        return self._leaders

    def present(self, teams: Iterable[Team]) -> list[Team]:
        """Those of these teams that are merged here."""
        return [team for team in teams if team.number in self.teams]

    def is_due(self, now: float) -> bool:
        """Whether a round in the background is to be opened."""
        return self.is_wanted or self.clock.is_due(now)

    def open(self, number: int, teams: Sequence[Team], now: float, *, is_whole: bool) -> Round:
        """Begins to merge these teams."""
        self.is_wanted = False
        is_end = is_whole and all(team.reached and team.reached.is_end for team in teams)
        numbers = tuple(team.number for team in teams)
        self.round = Round(number, numbers, opened_s=now, is_whole=is_whole, is_end=is_end)
        self.clock.begin(now)
        leaders = tuple(team.leader for team in teams)
        if leaders != self._leaders:
            self._leaders, self._group = leaders, number
        return self.round

    def opening(self, one: Round, hellos: Mapping[int, Hello]) -> RoundOpened:
        """What the teams are told of it."""
        return RoundOpened(
            number=one.number,
            group=self._group,
            leaders=self._leaders,
            addresses=tuple(hellos[worker].address for worker in self._leaders),
            is_whole=one.is_whole,
            is_end=one.is_end,
            level=self.level,
            compression="none" if one.is_end else self._compression,
        )

    def close(self, one: Round, *, is_committed: bool, sync: Sync) -> RoundClosed:
        """The round is over. After a failure its leaders' group is broken, and another one is made."""
        self.round = None
        if not is_committed:
            self._leaders = ()
        closed = RoundClosed(number=one.number, is_committed=is_committed, sync=sync)
        self.closed = [*self.closed, closed][-2:]
        return closed

    def recall(self, merged: Iterable[Merged], *, lost: int, sync: Sync) -> None:
        """After a restart: the last round that was committed here, and that any later one is lost."""
        numbers = [
            one.number
            for one in merged
            if one.level == self.level and self.teams.intersection(one.offsets)
        ]
        committed = [RoundClosed(number=n, is_committed=True, sync=sync) for n in numbers[-1:]]
        self.closed = [*committed, RoundClosed(number=lost, is_committed=False, sync=sync)]

    def is_stale(self, team: Team) -> bool:
        """Whether the round waits for somebody who leads this team no more."""
        is_in = self.round is not None and team.number in self.round.teams
        return is_in and bool(self._leaders) and team.leader not in self._leaders


class Merges:
    """All scopes of a job."""

    def __init__(self, scopes: Sequence[Scope]) -> None:
        self.scopes = sorted(scopes, key=lambda scope: scope.level)

    @property
    def top(self) -> Scope:
        """The one of all teams."""
        return self.scopes[-1]

    def of(self, team: int) -> list[Scope]:
        """Where a team is merged, from the lowest level up."""
        return [scope for scope in self.scopes if team in scope.teams]

    def find(self, number: int) -> tuple[Scope, Round] | None:
        """The round of this number, if it is open."""
        for scope in self.scopes:
            if scope.round is not None and scope.round.number == number:
                return scope, scope.round
        return None

    def has_round(self, team: int, number: int) -> bool:
        """Whether a team takes part in the round of this number, which is open."""
        found = self.find(number)
        return found is not None and team in found[1].teams

    def is_waiting_for(self, team: int) -> bool:
        """Whether a round cannot end before this team has done its part."""
        rounds = [scope.round for scope in self.scopes if scope.round is not None]
        return any(team in one.teams and team not in one.reports for one in rounds)

    def is_awaited_by(self, team: int, reached: Reached) -> bool:
        """Whether a round in the background is open that this team goes on with, and has not begun."""
        return not reached.is_end and any(
            scope.clock.sync.overlaps
            and scope.round is not None
            and not scope.round.is_whole
            and team in scope.round.teams
            and scope.round.number > reached.after
            for scope in self.scopes
        )

    def find_due(self, teams: Sequence[Team], now: float) -> list[Scope]:
        """Where a round in the background is to be opened now: higher levels go first."""
        due: list[Scope] = []
        taken = {number for scope in self.scopes if scope.round for number in scope.round.teams}
        for scope in reversed(self.scopes):
            present = scope.present(teams)
            is_possible = len(present) > 1 and all(team.reached is None for team in present)
            if scope.round is not None or not (is_possible and scope.is_due(now)):
                continue
            numbers = {team.number for team in present}
            if not numbers & taken:
                due.append(scope)
            taken |= numbers
        return due

    def set_rates(self, sync: Sync) -> None:
        """The same teams are held together in another way."""
        for scope in self.scopes:
            scope.clock.sync = sync.rates[scope.level]
            scope.clock.rarity = 1.0
            scope.is_wanted = True

    def set_batches(self, teams: Sequence[Team]) -> None:
        """What a global batch is to each scope: one step of all its teams."""
        for scope in self.scopes:
            scope.clock.global_batch = sum(team.batch for team in scope.present(teams))
