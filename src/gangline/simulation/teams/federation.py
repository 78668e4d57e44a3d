# SPDX-License-Identifier: Apache-2.0
"""The coordinator's side of simulated teams that train at their own pace.

Who gets which samples, when teams are merged, how the global batch is divided among them and who is
lost is decided by the rules of a real run (`control.leasing`, `control.rounds`, `control.parts`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gangline.control import PartChanged
from gangline.control.shares.parts import DIVIDE_EVERY_S, divide, divide_by_speed, is_worth_changing
from gangline.control.sync.leasing import LeaseBook
from gangline.control.sync.rounds import AWAY_S, Round, RoundClock
from gangline.simulation.teams.merging import Closing, OpenRound
from gangline.spec.event import Decision, LeaseReturned, RoundEnded, SamplesLeased
from gangline.spec.view import Whole

if TYPE_CHECKING:
    from gangline.control.sync.rounds import Report
    from gangline.simulation.clock import VirtualClock
    from gangline.simulation.network import Network
    from gangline.simulation.scenario import Scenario
    from gangline.simulation.teams.team import Team
    from gangline.simulation.world import Sink
    from gangline.spec.leases import Lease
    from gangline.spec.sync import Sync


class Listener(Protocol):
    """A team, as the coordinator speaks to it."""

    team: Team

    def hear_opened(self, opened: OpenRound) -> None:
        """A round was opened."""

    def hear_arriving(self) -> None:
        """It is known when the mean of a round will be there."""

    def hear_closed(self, closing: Closing) -> None:
        """A round was closed."""

    def hear_epoch(self, *, is_complete: bool) -> None:
        """All teams have come to the end of the epoch."""

    def hear_lost(self) -> None:
        """The team was given up."""


class Federation:
    """Gives out samples, opens and closes rounds, and finds who is lost."""

    def __init__(
        self,
        scenario: Scenario,
        sync: Sync,
        *,
        global_batch: int,
        clock: VirtualClock,
        sink: Sink,
        network: Network,
    ) -> None:
        self.book = LeaseBook(-1, 0)
        self.rounds = RoundClock(sync, global_batch=global_batch, now=clock.now)
        self.num_rounds = 0
        """Rounds that were committed."""
        self._scenario = scenario
        self._divided_s = clock.now
        self._global_batch = global_batch
        self._clock = clock
        self._sink = sink
        self._network = network
        self._listeners: dict[int, Listener] = {}
        self._open: OpenRound | None = None
        self._last_round = -1
        self._reached: dict[int, bool] = {}
        """Teams that wait for the others, and whether at the end of an epoch."""

    def admit(self, listener: Listener) -> None:
        """A team takes part."""
        self._listeners[listener.team.number] = listener

    @property
    def teams(self) -> list[Team]:
        """The teams that train."""
        return [listener.team for listener in self._listeners.values()]

    # --- samples ---------------------------------------------------------------------------------

    def grant(self, team: Team, number: int, *, epoch: int, length: int) -> Lease:
        """A team's lease of this number."""
        if epoch > self.book.epoch:
            self.book = LeaseBook(epoch, length)
        known = len(self.book.order_of(team.number))
        part = team.batch / max(1, sum(one.batch for one in self.teams))
        lease = self.book.grant(team.number, number, batch=team.batch, part=part)
        if lease.start < lease.stop and number >= known:
            self._sink(
                SamplesLeased(
                    t=self._clock.now,
                    team=team.number,
                    epoch=epoch,
                    number=number,
                    start=lease.start,
                    stop=lease.stop,
                )
            )
        return lease

    def note(self, samples: int) -> None:
        """A team made a step."""
        self.rounds.add_samples(samples)
        self._open_if_due()
        self._divide()

    # --- rounds ----------------------------------------------------------------------------------

    def reach(self, team: Team, *, is_end: bool) -> None:
        """A team waits for the others."""
        if team.number in self._listeners:
            self._reached[team.number] = is_end
            self._open_if_due()

    def _open_if_due(self) -> None:
        teams, now = self.teams, self._clock.now
        if self._open is not None or not teams:
            return
        if len(self._reached) == len(teams):
            self._begin_round(is_whole=True)
        elif not self._reached and len(teams) > 1 and self.rounds.is_due(now):
            self._begin_round(is_whole=False)

    def _begin_round(self, *, is_whole: bool) -> None:
        self._last_round += 1
        teams, now = self.teams, self._clock.now
        numbers = tuple(team.number for team in teams)
        one = Round(self._last_round, numbers, opened_s=now, is_whole=is_whole)
        self.rounds.begin(now)
        leaders = {team.number: team.world.lives[team.leader].row for team in teams}
        self._open = OpenRound(one, leaders, scenario=self._scenario, network=self._network)
        for listener in self._listeners.values():
            listener.hear_opened(self._open)

    def announce(self) -> None:
        """All copies were brought: who waits for the mean knows how long."""
        for listener in list(self._listeners.values()):
            listener.hear_arriving()

    def receive(self, team: Team, number: int, report: Report) -> None:
        """A team holds the mean of a round."""
        opened = self._open
        if opened is None or opened.number != number or team.number not in opened.leaders:
            return
        opened.control.reports[team.number] = report
        if opened.control.is_done:
            self._commit(opened.control)

    def _commit(self, one: Round) -> None:
        for team, report in one.reports.items():
            self.book.commit(team, report.offset)
        self.rounds.end(one, self._clock.now)
        self.num_rounds += 1
        self._record(one, is_committed=True)
        self._close(is_committed=True)
        if one.is_whole:
            self._after_whole()

    def _after_whole(self) -> None:
        if not all(self._reached.values()):
            self._reached = {team: is_end for team, is_end in self._reached.items() if is_end}
            return
        self.book.reopen()
        self._reached = {}
        for listener in self._listeners.values():
            listener.hear_epoch(is_complete=self.book.is_complete)

    def fail(self, number: int, reason: str) -> None:
        """A round comes to nothing."""
        if self._open is not None and self._open.number == number:
            self._record(self._open.control, is_committed=False, reason=reason)
            self._close(is_committed=False)

    def fail_stale(self, team: Team) -> None:
        """A team's members changed: if its leader is another one, its round comes to nothing."""
        opened = self._open
        if opened is None or team.number not in opened.leaders:
            return
        if opened.leaders[team.number] != team.world.lives[team.leader].row:
            self.fail(opened.number, f"team {team.number} has another leader")

    def _close(self, *, is_committed: bool) -> None:
        assert self._open is not None
        closing = Closing(self._open.number, is_committed, self.rounds.sync)
        self._open = None
        for listener in self._listeners.values():
            listener.hear_closed(closing)

    # --- lost teams, and the parts of those that are left ----------------------------------------

    def tick(self) -> None:
        """Time has passed: looks for lost teams, and opens what is due."""
        for team in self.teams:
            reason = self._find_lost(team)
            if reason is not None and len(self._listeners) > 1:
                self.lose(team, reason)
        self._open_if_due()

    def _find_lost(self, team: Team) -> str | None:
        now, alive = self._clock.now, [life for life in team.lives if life.is_alive]
        if not alive:
            away_s = now - max(life.struck_s for life in team.lives)
            told = f"none of its workers has been connected for {away_s:.1f} s"
            return told if away_s >= AWAY_S else None
        if not all(life.is_hung(now) for life in alive):
            return None
        is_waited_for = self._open is not None and team.number not in self._open.control.reports
        is_waited_for |= any(one != team.number for one in self._reached)
        silent_s = now - max(life.struck_s for life in alive)
        if not is_waited_for or silent_s < self.rounds.patience_s:
            return None
        return f"silent for {silent_s:.1f} s while other teams wait for it"

    def lose(self, team: Team, reason: str) -> None:
        """A team is gone: its samples are free again, and the others divide its work."""
        listener = self._listeners.pop(team.number)
        self._reached.pop(team.number, None)
        taken, now = self.book.take_back(team.number), self._clock.now
        returned = taken.get(team.number, [])
        for lease in returned:
            self._sink(
                LeaseReturned(
                    t=now,
                    team=team.number,
                    epoch=self.book.epoch,
                    start=lease.start,
                    stop=lease.stop,
                )
            )
        count = sum(lease.stop - lease.start for lease in returned)
        reason = f"team {team.number} is lost: {reason}; {count} samples of it are free again"
        numbers = {"team": float(team.number), "samples": float(count)}
        self._sink(Decision(t=now, what="lose_team", reason=reason, numbers=numbers))
        listener.hear_lost()
        if self._open is not None:
            self.fail(self._open.number, reason)
        self.settle(f"team {team.number} is lost")

    def _divide(self) -> None:
        """Now and then: whether the teams' parts of the global batch fit their speeds."""
        teams, now = self.teams, self._clock.now
        if len(teams) < 2 or now - self._divided_s < DIVIDE_EVERY_S:
            return
        self._divided_s = now
        states = {team.number: team.state for team in teams}
        better = divide_by_speed(self._global_batch, states)
        present = {team.number: team.batch for team in teams}
        if better is None or not is_worth_changing(present, better):
            return
        for team in teams:
            team.batch = better[team.number]
        shown = ", ".join(f"team {number} {part}" for number, part in better.items())
        self.settle(f"samples per step by the teams' speeds: {shown}")

    def settle(self, reason: str) -> None:
        """Tells every team its place in the whole, where that is another one than it was told."""
        teams = self.teams
        if sum(team.batch for team in teams) != self._global_batch:
            speeds = {team.number: float(team.batch) for team in teams}
            parts = divide(self._global_batch, speeds, {team.number: team.least for team in teams})
            for team in teams:
                team.batch = parts[team.number]
        for team, whole in zip(teams, wholes_of(teams, self._global_batch), strict=True):
            if whole != team.whole or team.state.options.global_batch != team.batch:
                team.whole = whole
                team.tell(PartChanged(global_batch=team.batch, whole=whole, reason=reason))

    def _record(self, one: Round, *, is_committed: bool, reason: str = "") -> None:
        reports = one.reports.values()
        self._sink(
            RoundEnded(
                t=self._clock.now,
                number=one.number,
                epoch=self.book.epoch,
                is_committed=is_committed,
                is_whole=one.is_whole,
                offsets={str(team): report.offset for team, report in one.reports.items()},
                took_s=self._clock.now - one.opened_s,
                exchange_s=max((report.exchange_s for report in reports), default=0.0),
                busy_s=max((report.busy_s for report in reports), default=0.0),
                drift=max((report.drift for report in reports), default=0.0),
                interval_s=self.rounds.interval_s,
                sync=str(self.rounds.sync),
                reason=reason,
            )
        )


def wholes_of(teams: list[Team], global_batch: int) -> list[Whole]:
    """Each team's place among all of them."""
    found, first_rank, first_sample = [], 0, 0
    for team in teams:
        found.append(
            Whole(
                team=team.number,
                first_rank=first_rank,
                workers=sum(len(one.members) for one in teams),
                first_sample=first_sample,
                samples=global_batch,
            )
        )
        first_rank += len(team.members)
        first_sample += team.batch
    return found
