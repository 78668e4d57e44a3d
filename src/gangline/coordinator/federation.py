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

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gangline.control.sync.pace import find_pace
from gangline.coordinator.hub import Hub
from gangline.coordinator.kept.records import Ended, NoJournal
from gangline.coordinator.orders import StandingOrders
from gangline.coordinator.outgoing import LEFT_BEHIND, OVER, Outgoing
from gangline.coordinator.reports.noted import NotedValues
from gangline.coordinator.reports.progress import Progress
from gangline.coordinator.reports.verdict import judge_ends, judge_team
from gangline.coordinator.reports.writers import Writers
from gangline.coordinator.teams.all_teams import Teams
from gangline.coordinator.teams.autosync import AutoSync
from gangline.coordinator.teams.founding import Founder, check_can_part
from gangline.coordinator.teams.team import TeamFactory
from gangline.protocol.lifeline import Standing
from gangline.protocol.messages import (
    FromTeam,
    FromWorker,
    Goodbye,
    Hello,
    Measured,
    Noted,
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
from gangline.spec.sync import AUTO, FULL, IN_STEP
from gangline.spec.view import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.coordinator.kept.records import Journal
    from gangline.coordinator.mind import Mind
    from gangline.coordinator.reports.bunch import Bunch
    from gangline.coordinator.settings import Settings
    from gangline.coordinator.structure.replanning import PlanSink
    from gangline.coordinator.teams.team import Team
    from gangline.eventlog import EventSink
    from gangline.protocol.lifeline import ProcessEnded
    from gangline.spec.position import Position
    from gangline.spec.sync import Sync


RECALL_S = 10.0
"""So long spares are waited for, before the others part without them."""


class Parting(NamedTuple):
    """The workers of a job that is one are to be held together like this, each group for itself."""

    sync: Sync
    since_s: float


class Federation:
    """The coordinator as its server sees it."""

    def __init__(
        self,
        settings: Settings,
        *,
        events: EventSink,
        clock: Callable[[], float],
        journal: Journal | None = None,
        plans: PlanSink | None = None,
    ) -> None:
        """Goes on where the journal ends; `plans` keeps the structures that are planned."""
        self._settings = settings
        self._events = events
        self._clock = clock
        self._journal = journal or NoJournal()
        self._root = Hub(settings, events=events, clock=clock, journal=self._journal, plans=plans)
        self._factory = TeamFactory(settings, events, clock, self._journal)
        self._teams: Teams | None = None
        self._founder = Founder(self._root, self._factory, self._journal, settings.profile)
        self._auto = AutoSync(settings.profile, events, clock)
        self._parting: Parting | None = None
        """The workers are to part as soon as the spares are back."""
        self._ready: dict[int, Ready] = {}
        """What those were ready for that were made teams."""
        self._newest_ready: dict[int, Ready] = {}
        """What everybody was ready for, who only came to enter a team, too."""
        self._progress = Progress(clock())
        self._noted = NotedValues()
        self._ended: dict[int, Position] = {}
        """Whose script has ended by itself, in whichever team, and where."""
        self._stopped: Stopped | None = None
        self._writers = Writers(self._root.mind.hellos)
        self._orders = StandingOrders(self._journal, self._root.mind.hellos)
        self._late: set[tuple[int, int, int]] = set()
        """Of whom it was said that they spoke for a team that they had been moved from."""
        self._resume()

    # --- what the server asks --------------------------------------------------------------------

    def connect(self, hello: Hello) -> tuple[int, list[Outgoing]]:
        """A worker said hello: its number, and what to tell whom. Raises UsageError for it to read."""
        if self._orders.is_ending and hello.worker not in self._root.mind.hellos:
            raise UsageError("an operator has ended this job")
        worker, outgoing = self._connect(hello)
        return worker, outgoing + self._orders.greet(worker)

    def _connect(self, hello: Hello) -> tuple[int, list[Outgoing]]:
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
        hello = hub.mind.hellos.get(worker)
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
        others = sorted({*self._root.mind.hellos} - {*own})
        return [Outgoing(worker, refused) for worker in others]

    def standing(self) -> Standing:
        """How the job stands, for whoever started it."""
        minds = self._minds()
        members = [member for mind in minds for member in mind.members]
        present = tuple(member for mind in minds for member in mind.present)
        return Standing(
            come=self._root.mind.come if self._teams is None and not members else 0,
            present=present,
            silent_s=self._progress.silent_s(present, self._clock()),
            finished=tuple(sorted(self._progress.finished)),
            main=members[0] if members else -1,
            is_ending=self._orders.is_ending,
        )

    def machine_of(self, worker: int) -> str:
        """The machine that a worker said it is on; empty where it has said nothing."""
        hello = self._root.mind.hellos.get(worker)
        return "" if hello is None else hello.machine

    def tick(self) -> list[Outgoing]:
        """Time has passed: looks whether somebody is missing, and grants what was asked for."""
        outgoing = self._follow_auto() + self._part_if_all_are_there() + self._end_on()
        if self._teams is None:
            return outgoing + self._root.tick()
        for team in list(self._teams.teams.values()):
            outgoing += self._with_changes(team, team.hub.tick)
        outgoing += self._part_from_guests()
        return outgoing + self._stop_all() + self._teams.tick() + self._regroup()

    def _part_from_guests(self) -> list[Outgoing]:
        """Who came back to its own data is alike again by now: all are made other teams, with it."""
        teams = self._teams
        if teams is None or not self._founder.is_owned or teams.is_regrouping:
            return []
        if not any(len(team.members) > 1 and team.mind.is_settled for team in teams.active):
            return []
        return teams.set_sync(teams.sync, is_regrouping=True)

    def receive(self, worker: int, message: FromWorker) -> list[Outgoing]:
        """A worker said something after its hello."""
        self._progress.hear(worker, self._clock())
        if isinstance(message, Goodbye) and worker in self._hub_of(worker).mind.members:
            self._progress.note_goodbye(worker, message)
        if isinstance(message, Ready):
            has_begun = self._teams is not None or self._root.mind.control is not None
            message = self._auto.resolve(message, has_begun=has_begun)
            self._newest_ready[worker] = message
        if isinstance(message, Measured):
            self._auto.see_step(message.compute_s)
            self._progress.samples += message.samples
        if isinstance(message, Noted):
            self._note(worker, message)
            return []
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
            self._ended |= team.mind.ended
            if not self._teams.active:
                self._journal.append(Ended())
            stopped = judge_ends(self._ended, self._teams.sums)
            outgoing += self._teams.tell_sums() if stopped is None else self._judged(stopped)
        return outgoing + self._stop_all()

    def _note(self, worker: int, noted: Noted) -> None:
        team = None if self._teams is None else self._teams.team_of(worker)
        number = -1 if team is None else team.number
        self._noted.note(number, worker, noted, teams=self._numbers())

    def takes(self, bunch: Bunch) -> bool:
        """Whether the reports of many come to the same at once as one after the other."""
        return self._teams is None and not self._auto.is_on and self._root.takes(bunch)

    def report_steps(self, bunch: Bunch) -> list[Outgoing]:
        """Many workers, of whom it `takes` the reports, report a step."""
        self._progress.hear_many(bunch, self._clock())
        self._progress.samples += int(bunch.samples.sum())
        return self._root.report_steps(bunch)

    def _judged(self, stopped: Stopped) -> list[Outgoing]:
        """The workers' loops differ."""
        self._say("stop", stopped.reason)
        return self._stop_all(stopped)

    def _stop_all(self, stopped: Stopped | None = None) -> list[Outgoing]:
        """Where one team's job ends with an error, so does that of all."""
        assert self._teams is not None
        minds = [team.mind for team in self._teams.teams.values()]
        stopped = stopped or next(
            (mind.stopped for mind in minds if mind.stopped is not None), None
        )
        if stopped is None or self._stopped is not None:
            return []
        self._stopped = stopped
        return [out for mind in minds if mind.stopped is None for out in mind.stop(stopped)]

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

    def ask_all_to_leave(self) -> list[Outgoing]:
        """Nobody can go on here for long: all members are to leave, one after the other."""
        minds = [mind for mind in self._minds() if mind.roster.is_elastic(mind.members)]
        members = [member for mind in minds for member in mind.members]
        return self._orders.go_on() + [
            out for member in members for out in self.ask_to_leave(member)
        ]

    def exclude(self, worker: int) -> list[Outgoing]:
        """Somebody wants a worker kept out until it is taken back. Raises UsageError otherwise."""
        return self._hub_of(worker).exclude(worker)

    def take_back(self, worker: int) -> list[Outgoing]:
        """Somebody wants a worker back that is out. Raises UsageError where it is not."""
        return self._hub_of(worker).take_back(worker)

    def pause(self, *, is_paused: bool) -> list[Outgoing]:
        """Has the job stand still between two steps, or go on. Raises UsageError where it does."""
        self._check_trains("paused" if is_paused else "resumed")
        outgoing = self._orders.pause(is_paused=is_paused)
        what = "pause" if is_paused else "resume_steps"
        how = "stands still between two steps" if is_paused else "goes on"
        self._say(what, f"the job {how}: an operator asked for it")
        return outgoing

    def ask_checkpoint(self) -> list[Outgoing]:
        """Somebody wants a checkpoint now. Raises UsageError where none is kept."""
        self._check_trains("kept")
        known = {**self._root.mind.roster.ready, **self._newest_ready}
        if not any(one.keeps_checkpoints for one in known.values()):
            raise UsageError(
                "this job keeps no checkpoints: its script gives prepare() no checkpoint=FOLDER"
            )
        self._say("ask_checkpoint", "a checkpoint is wanted: an operator asked for it")
        return self._orders.save()

    def end(self) -> list[Outgoing]:
        """Has everybody leave; the last one writes a checkpoint. Raises UsageError where none can."""
        self._check_trains("ended")
        for mind in self._minds():
            mind.roster.check_elastic(mind.members, what="leave")
        outgoing = self._orders.end()
        self._say("end", "everybody leaves, and the job ends: an operator asked for it")
        return outgoing + self._end_on()

    def _check_trains(self, what: str) -> None:
        if not any(mind.is_under_way and mind.members for mind in self._minds()):
            raise UsageError(f"this job cannot be {what} now: it does not train")

    def _end_on(self) -> list[Outgoing]:
        """Asks those to leave that have not been asked yet, where the job is to end."""
        if not self._orders.is_ending:
            return []
        hubs = [] if self._teams is None else [team.hub for team in self._teams.active]
        return [out for hub in hubs or [self._root] for out in hub.ask_everybody_to_leave()]

    def ask_structure(self, request: ReplanRequest) -> list[Outgoing]:
        """Somebody wants another structure. Raises UsageError where there can be none."""
        if self._teams is not None:
            raise UsageError(
                "this job's groups train at their own pace: its structure stays as it is while it runs"
            )
        return self._root.ask_structure(request)

    def set_sync(self, sync: Sync) -> list[Outgoing]:
        """Holds groups together in another way. Raises UsageError where that cannot be changed."""
        outgoing = self._switch(sync)
        self._auto.turn(sync)
        return outgoing

    def _switch(self, sync: Sync) -> list[Outgoing]:
        self._check_served(sync)
        if self._teams is None:
            return self._part(sync)
        active = self._teams.active
        ready = self._founder.ready_of(active)
        if not ready:
            raise UsageError(f"this job cannot be switched to {sync} now: it does not train")
        if sync.kind == AUTO:
            sync = self._auto.choose(next(iter(ready.values())), levels=sync.levels)
        self._founder.check_levels(sync)
        wanted = {frozenset(one.workers) for one in self._founder.groups(sync, tuple(ready))}
        if sync.service is not None:
            sync.service.check(teams=len(wanted), workers=len(ready))
        present = {frozenset(team.members) for team in active}
        is_parting = any(team.hub is self._root for team in active)
        is_other = wanted != present or len(sync.rates) != len(self._teams.sync.rates)
        is_other |= sync.service != self._teams.sync.service
        return self._teams.set_sync(sync, is_regrouping=is_parting or is_other)

    def _check_served(self, sync: Sync) -> None:
        """Raises UsageError where parameter servers cannot make the updates of this job."""
        known = {**self._root.mind.roster.ready, **self._newest_ready}
        reason = next((one.must_update for one in known.values() if one.must_update), "")
        if sync.service is not None and reason:
            raise UsageError(f"this job cannot be switched to {sync}: {reason}")

    @property
    def has_workers(self) -> bool:
        """Whether somebody is connected who has not said goodbye."""
        return any(one.is_connected and one.state != "gone" for one in self.status().workers)

    def status(self) -> Status:
        """A snapshot for people."""
        found = self._status()
        found.samples = self._progress.samples
        found.logged = self._noted.newest(self._numbers())
        return found

    def _status(self) -> Status:
        if self._teams is None:
            return msgspec.structs.replace(
                self._root.status(), sync=str(IN_STEP), is_paused=self._orders.is_paused
            )
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
            run=self._settings.run,
            expected_workers=parts[0].expected_workers,
            workers=sorted(
                (worker for part in parts for worker in part.workers), key=lambda one: one.worker
            ),
            view=view,
            step=max(part.step for part in parts),
            decisions=[reason for part in parts for reason in part.decisions][-20:],
            sync=str(self._teams.sync),
            is_paused=self._orders.is_paused,
        )

    # --- teams -----------------------------------------------------------------------------------

    def _minds(self) -> list[Mind]:
        """What is known of the workers that train: of all of them, or of each team."""
        return (
            [self._root.mind] if self._teams is None else [one.mind for one in self._teams.active]
        )

    def _numbers(self) -> set[int]:
        """The teams that there are; -1 is that of all workers, who are in step."""
        return {-1} if self._teams is None else {one.number for one in self._teams.active}

    def _hub_of(self, worker: int) -> Hub:
        team = None if self._teams is None else self._teams.team_of(worker)
        return self._root if team is None else team.hub

    def _with_changes(self, team: Team, act: Callable[[], list[Outgoing]]) -> list[Outgoing]:
        """What a team's hub does, and what follows for the others where its members changed."""
        assert self._teams is not None
        before = team.members
        outgoing = act()
        if team.mind.take_lower_rate():
            self._teams.lower_rate(team)
        if team.members == before:
            return outgoing
        if self._founder.is_owned and team.members and before[0] != team.members[0]:
            return self._teams.lose(team, f"worker {before[0]}, whose samples it had, is gone")
        return outgoing + self._teams.note_group(team)

    def _follow_auto(self) -> list[Outgoing]:
        """Where that is left to `auto`: switches where that is better by what is measured."""
        now, teams = self._clock(), self._teams
        if not self._auto.is_on:
            return []
        if self._parting is not None or (teams is not None and teams.is_regrouping):
            self._auto.changed(now)
            return []
        is_apart = teams is not None and teams.sync.is_relaxed
        controls = [] if is_apart else [mind.control for mind in self._minds()]
        control = controls[0] if len(controls) == 1 else None
        advice = self._auto.advise(
            now,
            pace=None if control is None else find_pace(control),
            exchanges=() if teams is None else teams.take_exchanges(),
            is_apart=is_apart,
        )
        if advice is None:
            return []
        self._auto.changed(now)
        try:
            outgoing = self._switch(advice.sync)
        except UsageError as error:
            self._auto.note_refused(advice, str(error))
            return []
        self._auto.note_taken(advice)
        return outgoing

    def _say(self, what: str, reason: str, **numbers: float) -> None:
        self._events.write(Decision(t=self._clock(), what=what, reason=reason, numbers=numbers))

    def _found_teams(self) -> list[Outgoing]:
        """All founders are ready, and are to train apart."""
        ready = self._root.mind.founding
        if ready is None:
            return []
        structure = next(iter(ready.values())).structure
        first = self._founder.begin(ready, structure)
        groups = self._founder.groups(first.sync, tuple(ready))
        try:
            self._founder.check_levels(first.sync)
            teams, outgoing = self._founder.found(groups, ready, first.sync)
        except UsageError as error:
            return [Outgoing(worker, Refused(reason=str(error))) for worker in ready]
        self._ready = ready
        self._teams = self._make_teams(first)
        return outgoing + self._begin(teams, first.sync)

    def _begin(self, teams: dict[int, Team], sync: Sync) -> list[Outgoing]:
        assert self._teams is not None
        members = {number: team.members for number, team in teams.items()}
        return self._teams.begin(teams, sync, self._founder.scopes(sync, members))

    def _part(self, sync: Sync) -> list[Outgoing]:
        """The job is one, and is to become several: the spares are asked back first."""
        root, founder = self._root.mind, self._founder
        if root.kept_out and sync.kind != FULL:
            names = ", ".join(str(worker) for worker in sorted(root.kept_out))
            raise UsageError(
                f"worker {names} is kept out, and everybody must be in when groups part: take it back "
                "first, or have it leave"
            )
        members = (*root.members, *root.present_spares)
        ready = {one: own for one in members if (own := root.readied(one)) is not None}
        if not ready or root.is_over:
            raise UsageError(f"this job cannot be switched to {sync} now: it does not train")
        first = next(iter(ready.values()))
        if sync.kind == AUTO:
            sync = self._auto.choose(first, levels=sync.levels)
        if not sync.is_relaxed:
            self._parting = None
            return []  # that is what it is
        founders = {one: own for one in root.founders if (own := root.readied(one)) is not None}
        founder.begin(founders, founder.structure_of_root(first.structure))
        groups = founder.groups(sync, members)
        check_can_part(first, sync, groups)
        if sync.service is not None:
            sync.service.check(teams=len(groups), workers=len(members))
        founder.check_levels(sync)
        self._parting = Parting(sync, self._clock())
        root.recall()
        return self._part_if_all_are_there()

    def _part_if_all_are_there(self) -> list[Outgoing]:
        """Makes the job a team, which stops to be parted, when no spare is waited for any more."""
        root, parting = self._root.mind, self._parting
        if parting is None or self._teams is not None or not root.is_under_way:
            return []
        is_entering = bool(root.present_spares) or not root.is_settled
        if is_entering and self._clock() - parting.since_s < RECALL_S:
            return []
        self._parting = None
        sync = parting.sync
        ready = {one: own for one in root.members if (own := root.readied(one)) is not None}
        self._ready = ready
        first = next(iter(ready.values()))
        self._teams = self._make_teams(msgspec.structs.replace(first, sync=IN_STEP))
        team = self._founder.found_of_root()
        outgoing = self._begin({team.number: team}, IN_STEP)
        outgoing += self._teams.set_sync(sync, is_regrouping=True)
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
        founded, outgoing = self._founder.found(groups, ready, sync)
        outgoing += self._begin(founded, sync)
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
            hellos=self._root.mind.hellos,
            patience_s=self._settings.patience_s,
            profile=self._settings.profile,
            lease_scheme=self._settings.lease_scheme,
        )

    def _team_for(self, replaces: int, *, unreached: frozenset[int] = frozenset()) -> Team:
        """The team that a newcomer enters: of whom it replaces, or the smallest that it reaches."""
        assert self._teams is not None
        known = self._teams.team_of(replaces)
        if known is not None and known in self._teams.active:
            return known
        active = self._teams.training or self._teams.active
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
        hello = self._root.mind.hellos.get(worker)
        known = self._ready.get(worker, self._root.mind.readied(worker))
        ready = message if isinstance(message, Ready) else self._newest_ready.get(worker, known)
        if hello is None or isinstance(message, Goodbye):
            return []
        if not self._teams.active:
            return [Outgoing(worker, OVER if known is None else LEFT_BEHIND)]
        if ready is not None and ready.owns is not None and ready.owns[0] == ready.owns[1]:
            return [Outgoing(worker, LEFT_BEHIND)]  # it has no sample to compute along with others
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
        root = self._root.mind
        self._ready = {one: own for one in root.hellos if (own := root.readied(one)) is not None}
        self._teams = self._make_teams(found.ready)
        self._teams.take_over(found.teams, found.sync, found.scopes)
        for team in found.teams.values():
            self._ended |= team.mind.ended
        self._teams.replay(self._journal.records)
