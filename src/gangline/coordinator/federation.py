# SPDX-License-Identifier: Apache-2.0
"""What the server asks: one hub, or one per team where groups train at their own pace.

The founders of a job always meet in one hub, so that all begin alike. If they are to train apart, each
group becomes a team with a hub of its own, which keeps its members together as that of a whole job
would; what concerns all teams is in `Teams`.

How they are held together can be changed while they train. If that takes other groups, the teams get no
more samples until all have met and are merged; then all workers are alike, and are made other teams. A
job that was one becomes a team first, with nobody to meet. One that is to be one becomes a single team.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.control.members.watch import MIN_PATIENCE_S
from gangline.control.sync.autosync import SyncWatch
from gangline.coordinator.hub import LEFT_BEHIND, OVER, Hub, Outgoing
from gangline.coordinator.records import Ended, NoJournal
from gangline.coordinator.reports.progress import Progress
from gangline.coordinator.reports.verdict import judge_ends, judge_team
from gangline.coordinator.reports.writers import Writers
from gangline.coordinator.teams.all_teams import Teams
from gangline.coordinator.teams.founding import Founder, check_can_part
from gangline.coordinator.teams.team import TeamFactory
from gangline.planning.structure.relaxing import choose_sync, groups_by_place
from gangline.protocol.lifeline import Standing
from gangline.protocol.messages import (
    FromTeam,
    FromWorker,
    Goodbye,
    Hello,
    Measured,
    OfTeam,
    Probed,
    Ready,
    Refused,
    Saved,
    Stopped,
)
from gangline.protocol.status import ReplanRequest, Status
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision
from gangline.spec.sync import AUTO, IN_STEP
from gangline.spec.view import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.control import ControlOptions
    from gangline.control.detection import Detector
    from gangline.coordinator.records import Journal
    from gangline.coordinator.replanning import Planning
    from gangline.coordinator.reports.bunch import Bunch
    from gangline.coordinator.teams.team import Team
    from gangline.eventlog import EventSink
    from gangline.planning.structure.relaxing import SyncChoice
    from gangline.protocol.lifeline import ProcessEnded
    from gangline.spec.position import Position
    from gangline.spec.sync import Sync


class Federation:
    """The coordinator as its server sees it."""

    def __init__(
        self,
        *,
        run: str,
        expected_workers: int,
        events: EventSink,
        clock: Callable[[], float],
        reserved: int = 0,
        journal: Journal | None = None,
        planning: Planning | None = None,
        detector: Detector | None = None,
        patience_s: float = MIN_PATIENCE_S,
        defaults: ControlOptions | None = None,
    ) -> None:
        """Goes on where the journal ends. Workers bring the numbers below `reserved` themselves.

        A worker that others wait for may be silent for `patience_s` at least. `defaults` says how the
        job is controlled where its workers do not.
        """
        self._patience_s = patience_s
        self._run = run
        self._events = events
        self._clock = clock
        self._journal = journal or NoJournal()
        self._root = Hub(
            run=run,
            expected_workers=expected_workers,
            events=events,
            clock=clock,
            reserved=reserved,
            journal=self._journal,
            planning=planning,
            detector=detector,
            patience_s=patience_s,
            defaults=defaults,
        )
        self._factory = TeamFactory(run, events, clock, self._journal, detector, patience_s)
        self._teams: Teams | None = None
        self._profile = None if planning is None else planning.profile
        self._founder = Founder(self._root, self._factory, self._journal, self._profile)
        self._choice: SyncChoice | None = None
        self._watch: SyncWatch | None = None
        self._kept_for = ""
        """Why `auto` could not switch, the last time."""
        """Where it is left to `auto` how the workers are held together."""
        self._ready: dict[int, Ready] = {}
        """What those were ready for that were made teams."""
        self._newest_ready: dict[int, Ready] = {}
        """What everybody was ready for, who only came to enter a team, too."""
        self._progress = Progress(clock())
        self._ended: dict[int, Position] = {}
        """Whose script has ended by itself, in whichever team, and where."""
        self._stopped: Stopped | None = None
        self._writers = Writers(self._root.hellos)
        self._late: set[tuple[int, int, int]] = set()
        """Of whom it was said that they spoke for a team that they had been moved from."""
        self._resume()

    # --- what the server asks --------------------------------------------------------------------

    def connect(self, hello: Hello) -> tuple[int, list[Outgoing]]:
        """A worker said hello: its number, and what to tell whom. Raises UsageError for it to read."""
        self._progress.hear(hello.worker, self._clock())
        if self._teams is None:
            return self._root.connect(hello)
        known = self._teams.team_of(hello.worker)
        if self._stopped is not None:
            return hello.worker, [Outgoing(hello.worker, self._stopped)]
        worker = hello.worker if known is not None else self._root.admit(hello)
        if not self._teams.active and worker in self._ready:
            return worker, [Outgoing(worker, LEFT_BEHIND)]
        team = known or self._team_for(hello.replaces)
        self._teams.hear(worker)
        _, outgoing = team.hub.connect(msgspec.structs.replace(hello, worker=worker))
        return worker, self._teams.catch_up(worker, team) + outgoing

    def disconnect(self, worker: int) -> None:
        """A worker's connection is gone; the worker itself may be well."""
        self._hub_of(worker).disconnect(worker)

    def see_busy(self, worker: int, pid: int) -> None:
        """Somebody beside a worker says that it computes, and cannot say so itself."""
        hub = self._hub_of(worker)
        hello = hub.hellos.get(worker)
        if hello is None or hello.pid != pid:
            return  # of a worker that was there before
        hub.see_busy(worker)
        if self._teams is not None:
            self._teams.see_busy(worker)

    def note_ended(self, ended: ProcessEnded) -> list[Outgoing]:
        """Whoever starts the workers says that one's process is no more: nobody waits for it."""
        return self._hub_of(ended.worker).note_ended(ended)

    def dissolve(self, reason: str, *, own: tuple[int, ...]) -> list[Outgoing]:
        """Whoever started the job ends it: what all but its own workers, which it ends, are told."""
        told = f"the job was ended where it had been started: {reason}"
        refused = Refused(reason=told, is_dissolved=True)
        others = sorted({*self._root.hellos} - {*own})
        return [Outgoing(worker, refused) for worker in others]

    def standing(self) -> Standing:
        """How the job stands, for whoever started it."""
        hubs = [self._root] if self._teams is None else [team.hub for team in self._teams.active]
        members = [member for hub in hubs for member in hub.members]
        present = tuple(member for hub in hubs for member in hub.present)
        return Standing(
            come=self._root.come if self._teams is None and not members else 0,
            present=present,
            silent_s=self._progress.silent_s(present, self._clock()),
            finished=tuple(sorted(self._progress.finished)),
            main=members[0] if members else -1,
        )

    def tick(self) -> list[Outgoing]:
        """Time has passed: looks whether somebody is missing, and grants what was asked for."""
        outgoing = self._follow_auto()
        if self._teams is None:
            return outgoing + self._root.tick()
        for team in list(self._teams.teams.values()):
            outgoing += self._with_changes(team, team.hub.tick)
        return outgoing + self._stop_all() + self._teams.tick() + self._regroup()

    def receive(self, worker: int, message: FromWorker) -> list[Outgoing]:
        """A worker said something after its hello."""
        self._progress.hear(worker, self._clock())
        if isinstance(message, Goodbye) and worker in self._hub_of(worker).members:
            self._progress.note_goodbye(worker, message)
        if isinstance(message, Ready):
            message = self._newest_ready[worker] = self._resolved(message)
        if isinstance(message, Measured) and self._watch is not None:
            self._watch.see_step(worker, exchange_s=message.exchange_s, compute_s=message.compute_s)
        if isinstance(message, Saved):
            return [Outgoing(*answer) for answer in self._writers.note(worker, message)]
        if self._teams is None:
            return self._root.receive(worker, message) + self._found_teams()
        if self._stopped is not None and not isinstance(message, Goodbye):
            return [Outgoing(worker, self._stopped)]
        self._teams.hear(worker)
        if isinstance(message, Probed):
            self._teams.reach.hear(worker, message)
        team = self._teams.team_of(worker)
        if team is None:
            return self._adopt(worker, message)
        if isinstance(message, OfTeam) and not team.is_meant(message):
            self._drop_late(worker, message, team)
            return []
        if isinstance(message, FromTeam):
            stopped = judge_team(
                worker, team.number, message, ended=self._ended, sums=self._teams.sums
            )
            if stopped is not None:
                return self._judged(stopped)
            return self._teams.receive(team, worker, message) + self._regroup()
        outgoing = self._with_changes(team, lambda: team.hub.receive(worker, message))
        if isinstance(message, Measured):
            outgoing += self._teams.note(team, message)
        if isinstance(message, Goodbye):
            self._ended |= team.hub.ended
            if not self._teams.active:
                self._journal.append(Ended())
            stopped = judge_ends(self._ended, self._teams.sums)
            outgoing += self._teams.tell_sums() if stopped is None else self._judged(stopped)
        return outgoing + self._stop_all()

    def takes(self, bunch: Bunch) -> bool:
        """Whether the reports of many come to the same at once as one after the other."""
        return self._teams is None and self._watch is None and self._root.takes(bunch)

    def report_steps(self, bunch: Bunch) -> list[Outgoing]:
        """Many workers, of whom it `takes` the reports, report a step."""
        self._progress.hear_many(bunch, self._clock())
        return self._root.report_steps(bunch)

    def _judged(self, stopped: Stopped) -> list[Outgoing]:
        """The workers' loops differ."""
        self._say("stop", stopped.reason)
        return self._stop_all(stopped)

    def _stop_all(self, stopped: Stopped | None = None) -> list[Outgoing]:
        """Where one team's job ends with an error, so does that of all."""
        assert self._teams is not None
        hubs = [team.hub for team in self._teams.teams.values()]
        stopped = stopped or next((hub.stopped for hub in hubs if hub.stopped is not None), None)
        if stopped is None or self._stopped is not None:
            return []
        self._stopped = stopped
        return [out for hub in hubs if hub.stopped is None for out in hub.stop(stopped)]

    def _drop_late(self, worker: int, message: OfTeam, team: Team) -> None:
        """A worker was moved to another team, and had not heard of it when it said this."""
        key = (worker, message.team, team.number)
        if key not in self._late:
            self._late.add(key)
            reason = f"worker {worker} speaks for team {message.team}, and is in team {team.number}"
            self._say("drop_late", f"{reason} now: that counts no more", worker=float(worker))

    def ask_to_leave(self, worker: int) -> list[Outgoing]:
        """Somebody wants a worker to go. Raises UsageError where it cannot."""
        return self._hub_of(worker).ask_to_leave(worker)

    def ask_structure(self, request: ReplanRequest) -> list[Outgoing]:
        """Somebody wants another structure. Raises UsageError where there can be none."""
        if self._teams is not None:
            raise UsageError(
                "this job's groups train at their own pace: its structure stays as it is while it runs"
            )
        return self._root.ask_structure(request)

    def set_sync(self, sync: Sync) -> list[Outgoing]:
        """Holds groups together in another way. Raises UsageError where that cannot be changed."""
        is_auto = sync.kind == AUTO
        outgoing = self._switch(sync)
        self._watch = SyncWatch(self._clock(), levels=sync.levels) if is_auto else None
        return outgoing

    def _switch(self, sync: Sync) -> list[Outgoing]:
        if self._teams is None:
            return self._part(sync)
        active = self._teams.active
        ready = self._founder.ready_of(active)
        if not ready:
            raise UsageError(f"this job cannot be switched to {sync} now: it does not train")
        if sync.kind == AUTO:
            sync = self._choose(next(iter(ready.values())), levels=sync.levels)
        self._founder.check_levels(sync)
        wanted = {frozenset(one.workers) for one in self._founder.groups(sync, tuple(ready))}
        present = {frozenset(team.members) for team in active}
        is_parting = any(team.hub is self._root for team in active)
        is_other = wanted != present or len(sync.rates) != len(self._teams.sync.rates)
        return self._teams.set_sync(sync, is_regrouping=is_parting or is_other)

    @property
    def has_workers(self) -> bool:
        """Whether somebody is connected who has not said goodbye."""
        return any(one.is_connected and one.state != "gone" for one in self.status().workers)

    def status(self) -> Status:
        """A snapshot for people."""
        if self._teams is None:
            return self._root.status()
        parts = [team.hub.status() for team in self._teams.teams.values()]
        views = [part.view for part in parts if part.view is not None]
        if not views:
            return self._root.status()
        view = View(
            number=max(one.number for one in views),
            members=tuple(member for one in views for member in one.members),
            shares=tuple(share for one in views for share in one.shares),
            reason=f"{len(views)} teams, held together by {self._teams.sync}",
        )
        return Status(
            run=self._run,
            expected_workers=parts[0].expected_workers,
            workers=sorted(
                (worker for part in parts for worker in part.workers), key=lambda one: one.worker
            ),
            view=view,
            step=max(part.step for part in parts),
            decisions=[reason for part in parts for reason in part.decisions][-20:],
        )

    # --- teams -----------------------------------------------------------------------------------

    def _hub_of(self, worker: int) -> Hub:
        team = None if self._teams is None else self._teams.team_of(worker)
        return self._root if team is None else team.hub

    def _with_changes(self, team: Team, act: Callable[[], list[Outgoing]]) -> list[Outgoing]:
        """What a team's hub does, and what follows for the others where its members changed."""
        assert self._teams is not None
        before = team.members
        outgoing = act()
        if team.hub.take_lower_rate():
            self._teams.lower_rate(team)
        if team.members == before:
            return outgoing
        return outgoing + self._teams.note_group(team)

    def _resolved(self, ready: Ready) -> Ready:
        """What a worker is ready for, where it was left to what is known of the links."""
        if ready.sync.kind == AUTO:
            sync = self._choose(ready, levels=ready.sync.levels)
            if self._teams is None and self._root.control is None:
                self._watch = SyncWatch(self._clock(), levels=ready.sync.levels)
            ready = msgspec.structs.replace(ready, sync=sync)
        profile = self._profile
        if ready.sync.is_relaxed and ready.structure is None and profile is not None:
            ready = msgspec.structs.replace(ready, structure=groups_by_place(profile))
        return ready

    def _follow_auto(self) -> list[Outgoing]:
        """Where that is left to `auto`: switches when exchanges have become slow, or quick again."""
        watch, teams = self._watch, self._teams
        if watch is None:
            return []
        now = self._clock()
        if teams is not None and teams.is_regrouping:
            watch.changed(now)
            return []
        is_apart = teams is not None and teams.sync.is_relaxed
        for exchange_s in () if teams is None else teams.take_exchanges():
            watch.see_round(exchange_s)
        hubs = [self._root] if teams is None else [team.hub for team in teams.active]
        members = [member for hub in hubs for member in hub.members]
        advice = watch.advise(now, members=members, is_apart=is_apart)
        if advice is None:
            return []
        watch.changed(now)
        try:
            outgoing = self._switch(advice.sync)
        except UsageError as error:
            if str(error) != self._kept_for:  # members and structure may change: it is tried again
                self._kept_for = str(error)
                self._say("keep_sync", f"{advice.reason}; but {error}")
            return []
        self._kept_for = ""
        self._say("choose_sync", advice.reason)
        return outgoing

    def _say(self, what: str, reason: str, **numbers: float) -> None:
        self._events.write(Decision(t=self._clock(), what=what, reason=reason, numbers=numbers))

    def _choose(self, ready: Ready, *, levels: int) -> Sync:
        """What `auto` is, by what is known of the links."""
        choice = choose_sync(self._profile, ready.gradient_bytes, levels=levels)
        if ready.must_stay:
            choice = choice._replace(sync=IN_STEP, reason=f"in step: {ready.must_stay}")
        if choice != self._choice:
            self._choice = choice
            self._say("choose_sync", choice.reason, exchange_s=choice.exchange_s)
        return choice.sync

    def _found_teams(self) -> list[Outgoing]:
        """All founders are ready, and are to train apart."""
        ready = self._root.founding
        if ready is None:
            return []
        structure = next(iter(ready.values())).structure
        first = self._founder.begin(ready, structure)
        groups = self._founder.groups(first.sync, tuple(ready))
        try:
            self._founder.check_levels(first.sync)
            teams, outgoing = self._founder.found(groups, ready)
        except UsageError as error:
            return [Outgoing(worker, Refused(reason=str(error))) for worker in ready]
        self._ready = ready
        self._teams = self._make_teams(first)
        self._begin(teams, first.sync)
        return outgoing

    def _begin(self, teams: dict[int, Team], sync: Sync) -> None:
        assert self._teams is not None
        members = {number: team.members for number, team in teams.items()}
        self._teams.begin(teams, sync, self._founder.scopes(sync, members))

    def _part(self, sync: Sync) -> list[Outgoing]:
        """The job is one, and is to become several: it is made a team, which stops to be parted."""
        root, founder = self._root, self._founder
        ready = {one: own for one in root.members if (own := root.readied(one)) is not None}
        if not ready or root.is_over:
            raise UsageError(f"this job cannot be switched to {sync} now: it does not train")
        first = next(iter(ready.values()))
        if sync.kind == AUTO:
            sync = self._choose(first, levels=sync.levels)
        if not sync.is_relaxed:
            return []  # that is what it is
        founders = {one: own for one in root.founders if (own := root.readied(one)) is not None}
        founder.begin(founders, founder.structure_of_root(first.structure))
        check_can_part(first, sync, founder.groups(sync, root.members))
        founder.check_levels(sync)
        self._ready = ready
        self._teams = self._make_teams(msgspec.structs.replace(first, sync=IN_STEP))
        team = founder.found_of_root()
        self._begin({team.number: team}, IN_STEP)
        outgoing = self._teams.set_sync(sync, is_regrouping=True)
        return outgoing + self._teams.settle(f"the workers part, to be held together by {sync}")

    def _regroup(self) -> list[Outgoing]:
        """If all teams have stopped for it, and are alike: makes the workers other teams."""
        teams = self._teams
        sync = None if teams is None else teams.stopped
        if teams is None or sync is None:
            return []
        ready = self._founder.ready_of(teams.active)
        bystanders = self._founder.bystanders(teams.teams.values())
        groups = self._founder.groups(sync, tuple(ready))
        founded, outgoing = self._founder.found(groups, ready)
        self._begin(founded, sync)
        self._ready |= ready
        for worker, hello, own in bystanders:
            outgoing += self._enter(worker, hello, own)
        return outgoing

    def _make_teams(self, first: Ready) -> Teams:
        return Teams(
            first.sync,
            global_batch=first.global_batch,
            events=self._events,
            journal=self._journal,
            clock=self._clock,
            hellos=self._root.hellos,
            patience_s=self._patience_s,
        )

    def _team_for(self, replaces: int, *, unreached: frozenset[int] = frozenset()) -> Team:
        """The team that a newcomer enters: of whom it replaces, or the smallest that it reaches."""
        assert self._teams is not None
        known = self._teams.team_of(replaces)
        if known is not None and known in self._teams.active:
            return known
        active = self._teams.active
        if not active:
            raise UsageError(OVER.reason)
        return min(
            active,
            key=lambda team: (
                bool(unreached.intersection(team.members)),
                len(team.members),
                team.number,
            ),
        )

    def _adopt(self, worker: int, message: FromWorker) -> list[Outgoing]:
        """A worker's team was given up: it enters another one, and copies its state.

        It may have trained in that team, or have only just come to enter it.
        """
        assert self._teams is not None
        hello = self._root.hellos.get(worker)
        known = self._ready.get(worker, self._root.readied(worker))
        ready = message if isinstance(message, Ready) else self._newest_ready.get(worker, known)
        if hello is None or isinstance(message, Goodbye):
            return []
        if not self._teams.active:
            return [Outgoing(worker, OVER if known is None else LEFT_BEHIND)]
        return self._enter(worker, hello, ready)

    def _enter(self, worker: int, hello: Hello, ready: Ready | None) -> list[Outgoing]:
        """A worker that is in no team enters one, as soon as it is ready."""
        assert self._teams is not None
        team = self._team_for(-1, unreached=self._teams.reach.unreached(worker))
        _, outgoing = team.hub.connect(msgspec.structs.replace(hello, worker=worker))
        if ready is not None:
            outgoing += team.hub.receive(worker, msgspec.structs.replace(ready, attempt=0))
        return outgoing + self._teams.catch_up(worker, team)

    def _resume(self) -> None:
        """Goes on where the coordinator of before was killed; its workers will come back."""
        found = self._founder.resume(self._journal.records)
        if found is None:
            return
        hellos = self._root.hellos
        self._ready = {one: own for one in hellos if (own := self._root.readied(one)) is not None}
        self._teams = self._make_teams(found.ready)
        self._teams.take_over(found.teams, found.sync, found.scopes)
        for team in found.teams.values():
            self._ended |= team.hub.ended
        self._teams.replay(self._journal.records)
