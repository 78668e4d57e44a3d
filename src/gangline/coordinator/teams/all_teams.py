# SPDX-License-Identifier: Apache-2.0
"""All teams of a job whose groups train at their own pace: their samples, their merges, their sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.control import PartChanged
from gangline.control.members.watch import MIN_PATIENCE_S
from gangline.control.shares.parts import (
    DIVIDE_EVERY_S,
    divide,
    divide_by_speed,
    is_worth_changing,
    least_parts,
    least_share,
    paces,
)
from gangline.control.sync.leasing import HALVES
from gangline.control.sync.rounds import Report, Round, RoundClock
from gangline.coordinator.kept.records import (
    Closed,
    Merged,
    RoundsLost,
    Switched,
    TeamLost,
    TeamsFounded,
)
from gangline.coordinator.outgoing import Outgoing
from gangline.coordinator.serving.desk import ServingDesk
from gangline.coordinator.teams.attendance import RETURN_S, Attendance
from gangline.coordinator.teams.chronicle import Chronicle
from gangline.coordinator.teams.leaderreach import LeaderReach
from gangline.coordinator.teams.lending import Lending
from gangline.coordinator.teams.merges import Merges, Scope
from gangline.coordinator.teams.sums import Sums
from gangline.planning.cost.serving import serving_rates
from gangline.protocol.messages import (
    EpochClosed,
    FromCoordinator,
    FromTeam,
    Heard,
    Holds,
    LeaseAsked,
    Pushed,
    Reached,
    RoundDone,
    RoundFailed,
    Told,
    Unserved,
)
from gangline.spec.errors import UsageError
from gangline.spec.view import Whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gangline.control import ControlState
    from gangline.coordinator.kept.records import AnyRecord, Journal
    from gangline.coordinator.teams.founding import ScopePlan
    from gangline.coordinator.teams.team import Team
    from gangline.eventlog import EventSink
    from gangline.protocol.messages import Hello, Measured
    from gangline.spec.leases import Lease
    from gangline.spec.profile import ClusterProfile
    from gangline.spec.serving import Service
    from gangline.spec.sync import Sync

_ROUNDS_LOST = 1000
"""How many round numbers are left out after a restart: more than can have been opened and forgotten."""


_KEPT_EXCHANGES = 32


class Teams:
    """Gives out samples, opens and closes rounds, and adds up what all teams tell."""

    def __init__(
        self,
        sync: Sync,
        *,
        global_batch: int,
        events: EventSink,
        journal: Journal,
        clock: Callable[[], float],
        hellos: Mapping[int, Hello],
        patience_s: float = MIN_PATIENCE_S,
        profile: ClusterProfile | None = None,
        lease_scheme: str = HALVES,
    ) -> None:
        """`profile`: what was measured of the workers' links."""
        self._profile = profile
        self._journal = journal
        self._clock = clock
        self._hellos = hellos
        self._global_batch = global_batch
        self.teams: dict[int, Team] = {}
        self.sync = sync
        """How the teams are held together now."""
        self._merges = Merges([])
        self._chronicle = Chronicle(events, clock=clock)
        self.lending = Lending(journal, self._chronicle, scheme=lease_scheme)
        """Their samples."""
        self._last_round = -1
        self._last_whole = -1
        """The last round for which all teams waited, and that was committed."""
        self._epoch_closed: EpochClosed | None = None
        self.sums = Sums()
        """What they add up outside of the epochs."""
        self._attendance = Attendance(patience_s=patience_s)
        self.reach = LeaderReach(hellos)
        """Whether the teams' leaders reach each other."""
        self._unsettled: str | None = None
        """Why some team is still to be told its place."""
        self._divided_s = clock()
        self._exchanges: list[float] = []
        self._regrouping: Sync | None = None
        """How the workers are to be held together when they are made other teams."""
        self._has_stopped = False
        """Whether all teams are merged, and wait for that."""
        self._is_last = False
        """Whether teams were told, before they met, that their parameter servers end there."""
        self._desk: ServingDesk | None = None
        """Where they train by parameter servers."""
        self._number_served = 0
        """Of the first order of servers that is not given yet."""

    def set_sync(self, sync: Sync, *, is_regrouping: bool) -> list[Outgoing]:
        """Holds the teams together in another way, which they learn with the next round.

        If the workers must be other teams for it, these teams get no more samples; when they have
        used theirs, all meet, and `stopped` says so.
        """
        self._journal.append(Switched(sync=sync, is_regrouping=is_regrouping))
        before = self.sync
        self._regrouping = sync if is_regrouping else None
        if not is_regrouping:
            self.sync = sync
            self._merges.set_rates(sync)
        how = "when all have met, as other teams," if is_regrouping else "from here on"
        self._chronicle.say("set_sync", f"held together by {before}, {how} by {sync}")
        return self._open_if_due()

    @property
    def is_regrouping(self) -> bool:
        """Whether the workers are to be made other teams, and are not yet."""
        return self._regrouping is not None

    def take_exchanges(self) -> list[float]:
        """How long the leaders of all teams exchanged, of the rounds since it was asked last."""
        taken, self._exchanges = self._exchanges, []
        return taken

    @property
    def stopped(self) -> Sync | None:
        """How the workers are to be held together, where all teams have stopped to be made others."""
        return self._regrouping if self._has_stopped else None

    def begin(
        self, teams: dict[int, Team], sync: Sync, scopes: Sequence[ScopePlan]
    ) -> list[Outgoing]:
        """These are the teams from here on."""
        self._journal.append(TeamsFounded(sync=sync))
        shown = ", ".join(f"team {one.number} {list(one.members)}" for one in teams.values())
        self._chronicle.say("found_teams", f"{shown}, held together by {sync}", teams=len(teams))
        self.take_over(teams, sync, scopes)
        self.sums.expect(teams if self.lending.book.epoch < 0 else (), None)
        self._regrouping, self._has_stopped = None, False
        return [] if self._desk is None else self._desk.follow(self.active)

    def take_over(self, teams: dict[int, Team], sync: Sync, scopes: Sequence[ScopePlan]) -> None:
        """Holds these teams together, of which nothing is known but that."""
        now = self._clock()
        told = self._merges.top.closed if self._merges.scopes else []
        self.teams, self.sync = teams, sync
        estates = {number: team.estate for number, team in teams.items()}
        owned = {number: one for number, one in estates.items() if one is not None}
        self.lending.settle_estates(owned or None)
        if owned:
            self._global_batch = sum(team.batch for team in self.training)
            self._unsettled = "each worker has its own data"
        self._merges = Merges(
            [
                Scope(
                    plan.level,
                    plan.teams,
                    RoundClock(sync.rates[plan.level], global_batch=self._global_batch, now=now),
                    compression=plan.compression,
                )
                for plan in scopes
            ]
        )
        self._merges.top.closed = told  # who was away may still wait for the end of the last round
        self._merges.set_batches(list(teams.values()))
        if self._desk is not None:
            self._number_served = self._desk.number
        self._desk = None
        if sync.service is not None:
            self._desk = self._make_desk(sync.service, compression=scopes[0].compression)

    def _make_desk(self, service: Service, *, compression: str) -> ServingDesk:
        return ServingDesk(
            service,
            lending=self.lending,
            journal=self._journal,
            chronicle=self._chronicle,
            hellos=self._hellos,
            global_batch=self._global_batch,
            teams=self.teams,
            number=self._number_served,
            compression=compression,
            rates=() if self._profile is None else serving_rates(self._profile),
        )

    def lower_rate(self, team: Team) -> None:
        """A team is held up by one of its workers: it is merged more rarely."""
        for scope in self._merges.of(team.number):
            scope.clock.lower()

    @property
    def active(self) -> list[Team]:
        """The teams that train."""
        return [team for team in self.teams.values() if team.members and not team.mind.is_over]

    @property
    def training(self) -> list[Team]:
        """Those of them that compute."""
        return [team for team in self.active if not team.only_serves]

    def team_of(self, worker: int) -> Team | None:
        """The team that a worker is in, or is about to enter."""
        return next((team for team in self.teams.values() if worker in team.mind.hellos), None)

    # --- messages --------------------------------------------------------------------------------

    def hear(self, worker: int) -> None:
        """A worker gave a sign of life."""
        self._attendance.hear(worker, self._clock())

    def see_busy(self, worker: int) -> None:
        """A worker computes, and cannot say so itself."""
        self._attendance.see_busy(worker, self._clock())

    def note(self, team: Team, report: Measured) -> list[Outgoing]:
        """A member made a step."""
        place = team.reached
        if place is not None and not place.is_end and report.step >= place.step:
            team.reached = None  # it waits no more: what said so had come twice
        for scope in self._merges.of(team.number):
            scope.clock.add_samples(report.samples)
        return self._open_if_due() + self._divide()

    def receive(self, team: Team, worker: int, message: FromTeam) -> list[Outgoing]:
        """A member said something that concerns all teams."""
        match message:
            case LeaseAsked():
                return self._grant(team, message)
            case Reached():
                return self._on_reached(team, message)
            case RoundDone():
                return self._on_done(team, message)
            case RoundFailed(number=number, error=error):
                is_own = self._merges.has_round(team.number, number)
                reason = f"team {team.number}: {error}"
                return self._close_failed(number, reason) if is_own else []
            case Pushed() | Unserved() | Holds():
                if self._desk is None or team not in self.active:
                    return []  # how they are held together has changed meanwhile
                return self._desk.receive(team, worker, message, self.active)
            case Told():
                return self._add_up(team, worker, message)

    def catch_up(self, worker: int, team: Team) -> list[Outgoing]:
        """What a worker must know that comes, or comes back. Leases it asks for itself."""
        scopes = self._merges.of(team.number)
        closed = {one.number: one for scope in scopes for one in scope.closed}
        told: list[FromCoordinator] = [closed[number] for number in sorted(closed)]
        told += self.sums.heard
        told += [
            scope.opening(scope.round, self._hellos)
            for scope in scopes
            if scope.round is not None and team.number in scope.round.teams
        ]
        if self._epoch_closed is not None:
            told.append(self._epoch_closed)
        served = [] if self._desk is None else self._desk.catch_up(worker, team)
        return served + [Outgoing(worker, message) for message in told]

    def _grant(self, team: Team, asked: LeaseAsked) -> list[Outgoing]:
        is_paused = self._regrouping is not None or team.only_serves
        part, teams = self._part_of(team), self.training
        granted = self.lending.grant(team, asked, part=part, teams=teams, is_paused=is_paused)
        return [] if granted is None else team.tell(granted)

    def _part_of(self, team: Team) -> float:
        """A team's part of all teams' speed; before that is measured, of the batch."""
        known = self._known()
        found = paces(known) if len(known) == len(self.training) else None
        if found is None or team.number not in found:
            return team.batch / max(1, sum(one.batch for one in self.training))
        return found[team.number] / sum(found.values())

    # --- rounds ----------------------------------------------------------------------------------

    def tick(self) -> list[Outgoing]:
        """Time has passed: looks for lost teams, and opens what is due."""
        now = self._clock()
        outgoing: list[Outgoing] = []
        for team in list(self.teams.values()):
            reason = self._find_lost(team, now)
            if reason is not None and any(one is not team for one in self.active):
                outgoing += self.lose(team, reason)
        if self._unsettled is not None:
            outgoing += self.settle(self._unsettled)
        outgoing += self._look_at_servers(now)
        return outgoing + self._look_for_cuts(now) + self._open_if_due()

    def _look_at_servers(self, now: float) -> list[Outgoing]:
        """Gives up teams that do not reach a parameter server which the others reach."""
        if self._desk is None:
            return []
        outgoing, given_up = self._desk.look(self.active, now)
        for number, reason in given_up.items():
            if number in self.teams and len(self.active) > 1:
                outgoing += self.lose(self.teams[number], reason)
        return outgoing

    def _look_for_cuts(self, now: float) -> list[Outgoing]:
        """Gives up teams whose leaders do not reach the others', where a round does not end."""
        outgoing: list[Outgoing] = []
        for leader, reason in self.reach.conclude(now).items():
            team = self.team_of(leader)
            if team is not None and team.leader == leader and len(self.active) > 1:
                outgoing += self.lose(team, reason)
        question = self.reach.ask(self._merges.scopes, now)
        if question is None:
            return outgoing
        leaders, probe = question
        return outgoing + [Outgoing(leader, probe) for leader in leaders]

    def _open_if_due(self) -> list[Outgoing]:
        teams, now = self.active, self._clock()
        if not teams:
            return []
        if all(team.reached is not None for team in teams):
            is_free = all(scope.round is None for scope in self._merges.scopes)
            return self._open(self._merges.top, teams, now, is_whole=True) if is_free else []
        due = self._merges.find_due(teams, now)
        return [
            out
            for scope in due
            for out in self._open(scope, scope.present(teams), now, is_whole=False)
        ]

    def _open(
        self, scope: Scope, teams: list[Team], now: float, *, is_whole: bool
    ) -> list[Outgoing]:
        self._last_round += 1
        one = scope.open(self._last_round, teams, now, is_whole=is_whole)
        opening = scope.opening(one, self._hellos)
        served: list[Outgoing] = []
        if self._desk is not None:
            self._is_last = self.is_regrouping
            served = self._desk.end_epoch(teams, is_last=self._is_last)
        return served + [out for team in teams for out in team.tell(opening)]

    def _on_reached(self, team: Team, reached: Reached) -> list[Outgoing]:
        closed, book = self._epoch_closed, self.lending.book
        if closed is not None and reached.step > closed.step + max(book.length, 1):
            raise UsageError(
                f"Reached with step = {reached.step}: the epoch began with step {closed.step} and has "
                f"{book.length} samples"
            )
        if reached.length and reached.epoch > book.epoch and book.epoch < 0:
            self.lending.open_in_the_middle(team, reached)
            book = self.lending.book
        # Who has not heard that it was merged says again where it waits, when its line is back.
        is_old = reached.epoch < book.epoch or reached.after < self._last_whole
        is_old |= self._is_over(team, reached)
        outgoing = [] if is_old or reached.is_end else self._open_beside(team)
        if not (is_old or self._merges.is_awaited_by(team.number, reached)):
            team.reached = reached
            if self._desk is not None:
                outgoing += self._desk.finish(team, self.active)
        return outgoing + self._open_if_due()

    def _open_beside(self, team: Team) -> list[Outgoing]:
        """A team has come to the step at which it takes its copy, and goes on: opens that round."""
        for scope in self._merges.of(team.number):
            scope.is_wanted |= scope.clock.sync.overlaps
        return self._open_if_due()

    def _is_over(self, team: Team, reached: Reached) -> bool:
        """Whether the end that a team waits for was told to it, and this crossed it on the way."""
        closed = self._epoch_closed
        if closed is None or not reached.is_end or team.number not in closed.teams:
            return False
        return reached.epoch == closed.epoch and reached.closing < closed.round

    def _on_done(self, team: Team, done: RoundDone) -> list[Outgoing]:
        found = self._merges.find(done.number)
        if found is None or not self._merges.has_round(team.number, done.number):
            return []
        scope, one = found
        if done.epoch != self.lending.book.epoch:
            reason = f"team {team.number} is in epoch {done.epoch}, not {self.lending.book.epoch}"
            return self._close_failed(one.number, reason)
        one.reports[team.number] = Report(
            done.offset, done.busy_s, done.exchange_s, done.drift, done.sent_bytes
        )
        return self._commit(scope, one, done.epoch) if one.is_done else []

    def _commit(self, scope: Scope, one: Round, epoch: int) -> list[Outgoing]:
        is_all = scope is self._merges.top
        offsets = {team: report.offset for team, report in one.reports.items()}
        if is_all:
            offsets |= self.lending.book.carried_by(one.teams)
        self.lending.merge(
            Merged(
                number=one.number,
                epoch=epoch,
                offsets=offsets,
                is_whole=one.is_whole,
                level=scope.level,
                is_all=is_all,
            )
        )
        scope.clock.end(one, self._clock())
        self._chronicle.end_round(
            one, epoch=epoch, is_committed=True, is_all=is_all, clock=scope.clock, offsets=offsets
        )
        if is_all and not one.is_whole:
            longest_s = max(report.exchange_s for report in one.reports.values())
            self._exchanges = [*self._exchanges, longest_s][-_KEPT_EXCHANGES:]
        outgoing = self._close(scope, one, is_committed=True)
        if one.is_whole:
            self._last_whole = one.number
            outgoing += self._after_whole(epoch)
        return outgoing

    def _after_whole(self, epoch: int) -> list[Outgoing]:
        """Everybody waited, and is merged: those go on that have something left to do."""
        reached = [team.reached for team in self.active if team.reached is not None]
        if not all(place.is_end for place in reached):
            for team in self.active:
                if team.reached is not None and not team.reached.is_end:
                    team.reached = None
            return []
        step = max((place.step for place in reached), default=0)
        # Who has not taken the optimizer's state from its servers must meet once more.
        regroup = self._regrouping if self._desk is None or self._is_last else None
        closed = EpochClosed(
            epoch=epoch,
            step=step,
            round=self._last_round,
            is_complete=self.lending.book.is_complete,
            teams=tuple(team.number for team in self.active),
            regroup=regroup,
        )
        self._epoch_closed = closed
        self.lending.end_epoch(is_complete=closed.is_complete)
        if closed.is_complete:
            self.sums.expect(closed.teams, epoch + 1)
        self._has_stopped = regroup is not None
        self._journal.append(
            Closed(
                epoch=epoch,
                step=step,
                round=closed.round,
                is_complete=closed.is_complete,
                teams=closed.teams,
                regroup=closed.regroup,
            )
        )
        for team in self.active:
            team.reached = None
        return [out for team in self.active for out in team.tell(closed)]

    def _close_failed(self, number: int, reason: str) -> list[Outgoing]:
        found = self._merges.find(number)
        if found is None:
            return []
        scope, one = found
        self._chronicle.end_round(
            one,
            epoch=self.lending.book.epoch,
            is_committed=False,
            is_all=scope is self._merges.top,
            clock=scope.clock,
            reason=reason,
        )
        return self._close(scope, one, is_committed=False)

    def _close(self, scope: Scope, one: Round, *, is_committed: bool) -> list[Outgoing]:
        closed = scope.close(one, is_committed=is_committed, sync=self.sync)
        return [out for team in scope.present(self.active) for out in team.tell(closed)]

    # --- lost teams, and the parts of those that are left ----------------------------------------

    def _find_lost(self, team: Team, now: float) -> str | None:
        if team.mind.is_over:  # at the end of the job, all its samples are merged
            return None if self.lending.book.is_complete else "all its workers have left"
        away = self._attendance.find_away(team, now)
        is_waited_for = self._merges.is_waiting_for(team.number)
        is_waited_for |= any(one.reached is not None for one in self.active if one is not team)
        if self._desk is not None:
            is_waited_for |= bool(self._desk.hosts.intersection(team.members))
            is_waited_for |= team.number in self._desk.awaited() or self._desk.awaits(team)
        if away is not None or not is_waited_for or team.away_since_s is not None:
            return away
        patience_s = max(scope.clock.patience_s for scope in self._merges.of(team.number))
        return self._attendance.find_hung(team, now, patience_s=patience_s)

    def lose(self, team: Team, reason: str) -> list[Outgoing]:
        """A team is gone: its samples are free again, and the others divide its work."""
        del self.teams[team.number]
        served = [] if self._desk is None else self._desk.follow(self.active)
        count, estate = self.lending.take_back(team.number)
        told = f"{count} samples are free again"
        if estate is not None:
            told = self._tell_gone(team, estate)
        reason = f"team {team.number} is lost: {reason}; {told}"
        self._chronicle.say("lose_team", reason, team=float(team.number), samples=float(count))
        outgoing = []
        for scope in self._merges.of(team.number):
            if scope.round is not None and team.number in scope.round.teams:
                outgoing += self._close_failed(scope.round.number, reason)
        outgoing += self.tell_sums()
        return outgoing + served + self.settle(f"team {team.number} is lost")

    def _tell_gone(self, team: Team, estate: Lease) -> str:
        """Only a lost team's worker had its samples: nobody can use them in its place."""
        worker = next(iter(team.mind.hellos), -1)
        self._chronicle.lose_samples(worker, max(0, self.lending.book.epoch), estate)
        count = estate.stop - estate.start
        return f"the {count} samples that only worker {worker} has are gone with it"

    def note_group(self, team: Team) -> list[Outgoing]:
        """A team's members changed: an exchange of its leader may never end."""
        outgoing = []
        for scope in self._merges.of(team.number):
            if scope.round is not None and scope.is_stale(team):
                reason = f"team {team.number} has another leader"
                outgoing += self._close_failed(scope.round.number, reason)
        if self._desk is not None:
            outgoing += self._desk.follow(self.active)
        return outgoing + self.settle(f"the members of team {team.number} changed")

    def _divide(self) -> list[Outgoing]:
        """Now and then: whether the teams' parts of the global batch fit their speeds."""
        teams, now = self.training, self._clock()
        if now - self._divided_s < DIVIDE_EVERY_S or self.lending.is_owned:
            return []
        self._divided_s = now
        known = self._known()
        if len(teams) < 2 or len(known) < len(teams):
            return []
        better = divide_by_speed(self._global_batch, known, minimum=self._least_share)
        present = {team.number: team.batch for team in teams}
        if better is None or not is_worth_changing(present, better):
            return []
        for team in teams:
            team.batch = better[team.number]
        shown = ", ".join(f"team {number} {part}" for number, part in better.items())
        return self.settle(f"samples per step by the teams' speeds: {shown}")

    def _known(self) -> dict[int, ControlState]:
        """What is measured of each team that trains."""
        states = {team.number: team.mind.control for team in self.training}
        return {number: state for number, state in states.items() if state is not None}

    @property
    def _least_share(self) -> int:
        """The fewest samples of a worker; where teams wait for each other's steps, as few as can be."""
        teams = self.training
        minimum = max((team.minimum for team in teams), default=1)
        if self.sync.has_common_steps:
            return minimum
        count = sum(len(team.members) for team in teams)
        return least_share(self._global_batch, count, minimum=minimum)

    def settle(self, reason: str) -> list[Outgoing]:
        """Tells every team its place in the whole, where that is another one than it was told."""
        teams, self._unsettled = self.training, None
        if self.lending.is_owned:  # each has the batches of its own loader
            self._global_batch = sum(team.batch for team in teams)
            if self._desk is not None:
                self._desk.set_global_batch(self._global_batch)
        missing = self._global_batch - sum(team.batch for team in teams)
        if missing and teams:
            speeds = {team.number: float(team.batch) for team in teams}
            sizes = {team.number: len(team.members) for team in teams}
            least = least_parts(self._global_batch, sizes, minimum=self._least_share)
            parts = divide(self._global_batch, speeds, least)
            for team in teams:
                team.batch = parts[team.number]
        self._merges.set_batches(teams)
        outgoing = []
        workers = sum(len(team.members) for team in self.active)
        first_rank = first_sample = 0
        for team in (*teams, *(one for one in self.active if one.only_serves)):
            whole = Whole(
                team=team.number,
                first_rank=first_rank,
                workers=workers,
                first_sample=first_sample,
                samples=self._global_batch,
                is_root=team.is_root,
            )
            first_rank += len(team.members)
            first_sample += 0 if team.only_serves else team.batch
            view = team.mind.view
            if whole == team.whole and (view is None or view.global_batch == team.batch):
                continue
            if not team.mind.is_settled:  # who enters its group must find the view that it was told
                self._unsettled = reason
                continue
            team.whole = whole
            part = PartChanged(global_batch=team.batch, whole=whole, reason=reason)
            outgoing += team.mind.change_part(part)
        return outgoing

    # --- sums ------------------------------------------------------------------------------------

    def _add_up(self, team: Team, worker: int, told: Told) -> list[Outgoing]:
        known = self.sums.find(told)
        if known is not None:
            return team.tell(known)
        if told.epoch <= self.lending.book.epoch:  # all have begun it since: it is forgotten
            return team.tell(
                Heard(
                    epoch=told.epoch, call=told.call, values=told.values, payloads=(told.payload,)
                )
            )
        self.sums.add(team.number, worker, told)
        return self.tell_sums()

    def tell_sums(self) -> list[Outgoing]:
        """What is complete now; also because a team is gone that it waited for."""
        teams = self.active
        found = self.sums.complete([team.number for team in teams])
        return [out for heard in found for team in teams for out in team.tell(heard)]

    # --- after a restart -------------------------------------------------------------------------

    def replay(self, records: Sequence[AnyRecord]) -> None:
        """Goes on where the coordinator of before was killed."""
        self._chronicle.repeat(records[-1], self._merges.top.clock)
        merged: list[Merged] = []
        for record in records:
            self.lending.replay(record)
            match record:
                case Merged(number=number):
                    self._last_round = max(self._last_round, number)
                    merged.append(record)
                case RoundsLost(number=number):
                    self._last_round = max(self._last_round, number)
                case Closed(epoch=epoch, round=number, is_complete=is_complete, regroup=regroup):
                    self._last_whole = number
                    self._has_stopped = regroup is not None
                    self._epoch_closed = EpochClosed(
                        epoch=epoch,
                        step=record.step,
                        round=number,
                        is_complete=is_complete,
                        teams=record.teams,
                        regroup=regroup,
                    )
                case Switched(sync=sync, is_regrouping=True):
                    self._regrouping = sync
                case Switched(sync=sync):
                    self.sync, self._regrouping = sync, None
                case TeamsFounded(sync=sync):
                    self.sync = sync
                    self._regrouping, self._has_stopped = None, False
                    self._last_whole = -1  # these teams have taken part in no round yet
                case TeamLost(team=team):
                    self.teams.pop(team, None)
        self._last_round += _ROUNDS_LOST
        # Whoever is started next must not use the numbers that this one will.
        self._journal.append(RoundsLost(number=self._last_round))
        for scope in self._merges.scopes:
            scope.recall(merged, lost=self._last_round, sync=self.sync)
        if self._desk is not None:
            self._desk.replay(records)
        self._attendance.away_s = RETURN_S
        if any(team.whole is None for team in self.teams.values()):
            self._unsettled = "the workers are to part"
        elif self.lending.is_owned:
            self._unsettled = "the coordinator was started again"
